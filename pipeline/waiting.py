"""Wait for something, or repeat something beside the rest of a process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_END_SECONDS = 10.0


def wait_until(condition: Callable[[], object], every: float, at_most: float) -> bool:
    """Wait until a condition is true; return whether it is.

    Args:
        condition: checked at least once. An error that it raises ends the wait.
        every: seconds between two checks.
        at_most: seconds until the wait ends.
    """
    deadline = time.monotonic() + at_most
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


class Periodic:
    """Calls a function repeatedly, in a daemon thread, until `end` or the end of the block.

    A function that raises an error is called again, as if it had returned.

    Args:
        function: what is called.
        every: seconds between two calls.
        first: seconds before the first call; by default, as many.
    """

    def __init__(
        self, function: Callable[[], object], every: float, first: float | None = None
    ) -> None:
        self.ended = threading.Event()
        """Nothing is called once it is set."""

        def repeat() -> None:
            pause = every if first is None else first
            while not self.ended.wait(pause):
                pause = every
                try:
                    function()
                except Exception:
                    logger.debug("%s failed; it is called again", function, exc_info=True)

        self._thread = threading.Thread(target=repeat, daemon=True)
        self._thread.start()

    def end(self, *_: object) -> None:
        """Call nothing more; wait ten seconds at most for a call in progress."""
        self.ended.set()
        self._thread.join(_END_SECONDS)

    def __enter__(self) -> threading.Event:
        """Return the event that ends it, for a block that knows earlier."""
        return self.ended

    __exit__ = end


def at_end_of_input(end: Callable[[], object]) -> None:
    """Call a function, in a daemon thread, once the standard input closes: our parent has ended."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        end()

    threading.Thread(target=watch, daemon=True).start()
