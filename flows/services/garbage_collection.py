"""Collect garbage in a thread of its own, never in the event loop of a server.

Python collects garbage in whichever thread allocates next, which in Prefect's server is mostly the
event loop. Cursors of SQLite are among the garbage, and to finalise one takes the lock of its
connection. If another thread holds that while it waits for the database, and the transaction that
it waits for needs the event loop, the whole server stands still until SQLite gives up: for
a minute, Prefect's `busy_timeout`.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time

_PAUSE_SECONDS = 1.0
_FULL_EVERY = 30
"""Every so many turns, objects that have survived a turn are looked through, too."""


def collect_in_own_thread(pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Stop the automatic collection in this process, and collect regularly in a daemon thread.

    What exists already, such as modules, is taken to stay.
    """
    gc.disable()
    gc.freeze()
    threading.Thread(
        target=_collect_for_ever, args=(pause_seconds,), name="garbage", daemon=True
    ).start()


def _collect_for_ever(pause_seconds: float) -> None:
    for turn in itertools.count(1):
        time.sleep(pause_seconds)
        gc.collect(2 if turn % _FULL_EVERY == 0 else 1)
