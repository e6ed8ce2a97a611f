"""What Ctrl-C (SIGINT) and SIGTERM do, in every process of Patchline.

| process | Ctrl-C | SIGTERM |
| --- | --- | --- |
| a command | `KeyboardInterrupt`; exits with 130 | exits with 143 through every `finally` |
| a call of the Python API | `KeyboardInterrupt` | as the caller's program has set it |
| a worker | nothing: the command ends it with its process group | exits with 143 |
| a service, and its supervisor | nothing: `patchline down` ends them | each ends its own work |

Prefect turns the exception of Ctrl-C into an exit with 130, so that is Ctrl-C, too. A call of a
database is not interrupted: signals are held until it has returned. `patchline predict` writes the
predictions that it has before it ends.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CTRL_C = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""
TERMINATED = 128 + signal.SIGTERM
"""The exit code after SIGTERM."""
SENTENCES = {CTRL_C: "Stopped by Ctrl-C.", TERMINATED: "Stopped by the signal SIGTERM."}
"""What a command prints, by its exit code."""
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def exit_on_sigterm() -> None:
    """Exit on SIGTERM through every `finally`, so that nothing stays open or running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def ignore_ctrl_c() -> None:
    """Let Ctrl-C in the terminal have no effect on this process, which its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let signals take effect when the block has ended; a second Ctrl-C takes effect at once.

    An exception that a signal raises inside a transaction can leave SQLite locked, and SQLAlchemy
    may report it as an error of the database. Outside the main thread, which alone receives
    signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in _NUMBERS}

    def hold(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if number in waiting and callable(handler):
            handler(number, frame)
        waiting.append(number)

    held = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in held:
            signal.signal(number, hold)
        yield
    finally:
        for number in held:
            signal.signal(number, before[number])
        for first in dict.fromkeys(waiting):
            signal.raise_signal(first)
