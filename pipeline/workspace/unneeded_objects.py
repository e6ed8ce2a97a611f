"""What of a store no name needs any more: contents that were replaced, removed or never named."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace import lease
from patchline.pipeline.workspace.files.workspace_folder import RUNS
from patchline.pipeline.workspace.run_folders import CHECKPOINT
from patchline.pipeline.workspace.shared_files import (
    FILES,
    NAMES,
    DamagedObjectError,
    SharedFiles,
    contents_of,
)

_JOBS = "jobs/"
"""Names of what workers on other machines read and write; a killed run leaves some."""
_YOUNG = dt.timedelta(days=1)
"""A machine may be about to name a content that is younger."""
_LOOK_AGAIN_SECONDS = 5.0


class UnneededObject(NamedTuple):
    """An object that may go."""

    key: str
    bytes: int


class Unneeded(NamedTuple):
    """What may go from a store."""

    objects: tuple[UnneededObject, ...]
    leases: tuple[str, ...]
    """Runs, or who decodes for one, with a lease that has not expired; contents stay meanwhile."""


def find(shared: SharedFiles, finished_runs: Collection[str]) -> Unneeded:
    """Return what no name needs, once the checkpoints of finished runs are gone.

    Nothing is deleted, also not what is damaged. What a damaged name needs is not known, so all
    contents stay meanwhile.

    Args:
        shared: of the workspace.
        finished_runs: names of the folders of runs whose checkpoints are not needed.

    Raises:
        StorageError: if the store does not answer.
    """
    active = _active_leases()
    names, needed, damaged = [], set[str](), list[str]()
    before = shared.store.now() - _YOUNG
    for info in shared.store.list(NAMES):
        name = info.key.removeprefix(NAMES).removesuffix(".json")
        is_left = name.startswith(_JOBS) and info.modified < before and not active
        if is_left or _is_old_checkpoint(name, finished_runs):
            names.append(UnneededObject(info.key, info.bytes))
            continue
        try:
            if named := shared.lasting(name):
                needed.update(contents_of(named.reference))
        except DamagedObjectError:
            damaged.append(info.key)
    if damaged:
        number = counted(len(damaged), "name")
        shared.on_note(
            f"{number} in {shared.uri} cannot be read, such as {damaged[0]}. "
            "Which contents are needed is not known, so none are listed. A run on a machine that "
            "still has the files repairs them"
        )
    contents = [] if active or damaged else list(_unnamed(shared, needed, before))
    return Unneeded((*names, *contents), active)


def delete(shared: SharedFiles, keys: Iterable[str]) -> Iterator[str]:
    """Delete objects, and yield the keys of those that are gone.

    Leases are looked at again: who has begun meanwhile may be about to name a content.

    Raises:
        StorageError: if the store does not answer.
    """
    active: tuple[str, ...] = ()
    looked = float("-inf")
    for key in keys:
        if time.monotonic() - looked > _LOOK_AGAIN_SECONDS:
            active, looked = _active_leases(), time.monotonic()
        if not active or key.startswith(f"{NAMES}{RUNS}/"):
            shared.store.delete(key)
            yield key


def _active_leases() -> tuple[str, ...]:
    return tuple(name for name, age in lease.ages().items() if not age.has_expired)


def _is_old_checkpoint(name: str, finished_runs: Collection[str]) -> bool:
    parts = name.split("/")
    return parts[0] == RUNS and parts[-1] == CHECKPOINT and parts[1] in finished_runs


def _unnamed(
    shared: SharedFiles, needed: Collection[str], before: dt.datetime
) -> Iterator[UnneededObject]:
    for info in shared.store.list(FILES):
        if info.key not in needed and info.modified < before:
            yield UnneededObject(info.key, info.bytes)
