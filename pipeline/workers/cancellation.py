"""Stop the workers that other threads wait for.

Signals reach the main thread alone. A thread that waits for a worker looks here several times a
second, and stops its worker as on any other exception.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class CancelledError(BaseException):
    """The block that a thread works for has ended; nobody but that block catches it."""


_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


@contextmanager
def cancellable() -> Iterator[threading.Event]:
    """Let threads that begin in the block, in a copy of its context, be cancelled by an event."""
    event = threading.Event()
    token = _cancelled.set(event)
    try:
        yield event
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise if the work of this thread was cancelled.

    Raises:
        CancelledError: if so.
    """
    event = _cancelled.get()
    if event is not None and event.is_set():
        raise CancelledError
