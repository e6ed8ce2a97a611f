"""Leases: objects that say who works on a run, renewed while that process is alive.

Where machines share a file system, a lock on a file says whether its holder is alive. An object
store has no locks, so the holder writes its lease again every `BEAT_SECONDS`. The age of a lease is
measured by the clock of the store alone, which dates both the lease and the moment of the question,
so the clocks of the machines do not matter. A lease that is older than `EXPIRED` has
expired; a younger one says nothing about a holder that was killed just now. Whoever decodes images
into the store for a run that has not begun yet holds one, too.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from patchline.pipeline.errors import PipelineError
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workspace import chosen

BEAT_SECONDS = 10.0
EXPIRED = dt.timedelta(seconds=90)
_FOLDER = "leases/"


@contextmanager
def hold_lease(name: str, beat_seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Hold the lease of a name while the block runs; nothing happens in a local workspace.

    Raises:
        StorageError: if the store does not take it at the beginning. Later failures are retried.
    """
    if chosen.address() is None:
        yield
        return
    _renew(name)
    try:
        with Periodic(lambda: _renew(name), beat_seconds):
            yield
    finally:
        with contextlib.suppress(PipelineError):  # then it expires
            if shared := chosen.find_shared_files():
                shared.store.delete(_key(name))


def find_expired() -> dict[str, bool]:
    """Return whether each lease should have been renewed long ago, by its name.

    Raises:
        StorageError: if the store does not answer.
    """
    shared = chosen.find_shared_files()
    leases = list(shared.store.list(_FOLDER)) if shared else []
    if shared is None or not leases:
        return {}
    oldest = shared.store.now() - EXPIRED
    return {
        info.key.removeprefix(_FOLDER).removesuffix(".json"): info.modified <= oldest
        for info in leases
    }


def _renew(name: str) -> None:
    if shared := chosen.find_shared_files():
        shared.store.write(_key(name), json.dumps({"host": socket.gethostname()}).encode())


def _key(name: str) -> str:
    return f"{_FOLDER}{name}.json"
