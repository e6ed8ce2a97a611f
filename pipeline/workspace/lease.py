"""Leases: objects that say who works on a run, renewed while that process is alive.

Where machines share a file system, a lock on a file says whether its holder is alive. An object
store has no locks, so the holder writes its lease again every `BEAT_SECONDS`. The age of a lease is
measured by the clock of the store alone, which dates both the lease and the moment of the question,
so the clocks of the machines do not matter. A lease that is older than `EXPIRED_SECONDS` has
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
from typing import NamedTuple

from patchline.pipeline.errors import PipelineError
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.object_store import ObjectStore

BEAT_SECONDS = 10.0
EXPIRED_SECONDS = 90.0
_FOLDER = "leases"


class LeaseAge(NamedTuple):
    """What the store says of a lease."""

    seconds: float
    """Since it was renewed, by the store's clock."""
    host: str
    """Name of the holder's machine."""

    @property
    def has_expired(self) -> bool:
        """Whether it should have been renewed long ago."""
        return self.seconds >= EXPIRED_SECONDS


@contextmanager
def held(name: str, beat_seconds: float = BEAT_SECONDS) -> Iterator[None]:
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
            if shared := chosen.shared():
                shared.store.delete(_key(name))


def age_of(name: str) -> LeaseAge | None:
    """Return the age of a lease; None if there is none, or the workspace is local.

    Raises:
        StorageError: if the store does not answer.
    """
    shared = chosen.shared()
    return _age(shared.store, name) if shared else None


def ages() -> dict[str, LeaseAge]:
    """Return the age of each lease, expired or not, by its name.

    Raises:
        StorageError: if the store does not answer.
    """
    listed, shared = names(), chosen.shared()
    if shared is None or not listed:
        return {}
    now = shared.store.now()
    return {name: age for name in listed if (age := _age(shared.store, name, now))}


def _age(store: ObjectStore, name: str, now: dt.datetime | None = None) -> LeaseAge | None:
    content = store.read(_key(name))
    if content is None:
        return None
    try:
        host = str(json.loads(content.data)["host"])
    except (ValueError, KeyError, TypeError):
        host = ""
    age = ((now or store.now()) - content.info.modified).total_seconds()
    return LeaseAge(max(0.0, age), host)


def names() -> list[str]:
    """Return the names of all leases, expired or not."""
    shared = chosen.shared()
    listed = shared.store.list(f"{_FOLDER}/") if shared else ()
    return [info.key.removeprefix(f"{_FOLDER}/").removesuffix(".json") for info in listed]


def _renew(name: str) -> None:
    if shared := chosen.shared():
        shared.store.write(_key(name), json.dumps({"host": socket.gethostname()}).encode())


def _key(name: str) -> str:
    return f"{_FOLDER}/{name}.json"
