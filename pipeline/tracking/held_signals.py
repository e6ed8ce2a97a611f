"""Hold Ctrl-C and SIGTERM back while a database is being written.

An exception that a signal raises inside a transaction can leave SQLite locked, and SQLAlchemy may
report it as an error of the database. So the signal waits until the call has returned.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let signals take effect when the block has ended; a second Ctrl-C takes effect at once.

    Outside the main thread, which alone receives signals, this does nothing.
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


@functools.cache
def holding_client() -> type[MlflowClient]:
    """Return the class of MLflow's client whose calls hold signals back."""
    from mlflow import MlflowClient

    class HoldingClient(MlflowClient):
        """`MlflowClient` for a database: each call completes before a signal takes effect."""

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or not callable(found):
                return found

            @functools.wraps(found)
            def whole(*arguments: Any, **named: Any) -> Any:
                with signals_held():
                    return found(*arguments, **named)

            return whole

    return HoldingClient
