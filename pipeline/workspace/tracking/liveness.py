"""Whether the owner of a run is alive, dead, or not known: the one place that decides it.

There are two kinds of evidence, and a third in a shared workspace.

The lock. The owner holds the lock on a file of the run and records the identity of that lock. A
lock that is held proves that the owner is alive. A free lock proves that it is dead only if it is
the very same lock: same kernel, same device, same file number. A file that is missing or may not be
opened proves nothing: the owner may be in another container, on another machine, or another user.

The heartbeat. The owner writes a new value every `BEAT_SECONDS`. An observer that sees it change is
looking at a live owner. One that has seen the same value for `STALE_SECONDS` concludes that the
owner is dead. Only the observer's own monotonic clock counts, which stands still while the machine
sleeps, so a difference between the clocks of two machines cannot kill a run. A command that ends at
once notes what it saw in `.patchline/heartbeats.json`, for the next one.

The lease that the owner renews on the object store of a shared workspace
(`pipeline.workspace.lease`). One that has expired by the clock of the store does not suffice, as
the owner may have lost the store alone; but then the same heartbeat has to be seen for
`STALE_WITHOUT_LEASE_SECONDS` only.

Without evidence the answer is UNKNOWN, and then nothing is closed, taken over or deleted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from patchline.pipeline.errors import PipelineError, StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import chosen, lease
from patchline.pipeline.workspace.files import file_locks, workspace_identity
from patchline.pipeline.workspace.files.file_locks import Liveness, holder_of, is_held
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

if TYPE_CHECKING:
    from mlflow.entities import Run

HOST_TAG, FOLDER_TAG, HEARTBEAT_TAG = "patchline.host", "patchline.folder", "patchline.heartbeat"
LOCK_TAG = "patchline.lock"
"""Identity of the lock that the owner holds; see `lock_identity`."""
WORKSPACE_TAG = "patchline.workspace"
"""Address of the shared workspace that a run belongs to."""
WORKSPACE_ID_TAG = "patchline.shared_workspace_id"
"""Its id, which a copy at another address has, too."""
LOCK_FILE = "owner.lock"
BEAT_SECONDS = 10.0
"""Time between two heartbeats of an owner."""
STALE_SECONDS = 90.0
"""How long an observer has to see the same heartbeat until the owner counts as dead."""
STALE_WITHOUT_LEASE_SECONDS = 25.0
"""The same if its lease on the store of a shared workspace has expired, too."""
CHECK_SECONDS = 0.2
"""How long a lock must stay held: longer than it takes to remove a dead owner's files."""
_POLL_SECONDS = 2.0
_KEPT_SECONDS = 24 * 3600.0
_NO_LOCKS = "locks-have-no-effect"
_OBSERVATIONS_FILE = "heartbeats.json"


class _SeenHeartbeat(FrozenModel):
    """A heartbeat as this workspace first saw it."""

    beat: str
    clock: str
    """The monotonic clock that `seconds` is read from; another boot has another one."""
    seconds: float


class _Observations(FrozenModel):
    observations: dict[str, _SeenHeartbeat] = Field(default_factory=dict)


_seen_here: dict[tuple[Path, str], _SeenHeartbeat] = {}
"""What this process has seen, also where the workspace may not be written."""


def of_run(run: Run) -> Liveness:
    """Return whether the owner of an MLflow run is alive."""
    by_lock = of_lock_of(run)
    if by_lock is not Liveness.UNKNOWN:
        return by_lock
    seconds = STALE_WITHOUT_LEASE_SECONDS if _lease_has_expired(run) else STALE_SECONDS
    return of_heartbeat(run.info.run_id, run.data.tags.get(HEARTBEAT_TAG, ""), seconds)


def _lease_has_expired(run: Run) -> bool:
    """Return whether the store says that the owner has not renewed its lease for long."""
    with contextlib.suppress(PipelineError):  # the store is away
        return _is_of_this_workspace(run) and lease.find_expired().get(folder_of(run).name, False)
    return False


def _is_of_this_workspace(run: Run) -> bool:
    """Return whether a run belongs to the shared workspace that this process works with."""
    tags, shared = run.data.tags, chosen.address()
    if shared is None:
        return False
    is_copy = bool(own := tags.get(WORKSPACE_ID_TAG)) and own == chosen.read_cached_id()
    return is_copy or tags.get(WORKSPACE_TAG) == str(shared)


def of_lock_of(run: Run) -> Liveness:
    """Return what the lock of an MLflow run says about its owner."""
    file, identity = lock_of(run), run.data.tags.get(LOCK_TAG, "")
    return holder_of(file, CHECK_SECONDS, identity) if file else Liveness.UNKNOWN


def lock_of(run: Run) -> Path | None:
    """Return the file that the owner of a run locks, where its workspace lies now."""
    return folder_of(run) / LOCK_FILE if run.data.tags.get(FOLDER_TAG) else None


def folder_of(run: Run) -> Path:
    """Return the folder of an MLflow run, where its workspace lies now.

    The run itself may name an earlier folder of a workspace that was moved: the store of a server
    is not rewritten. The folder of a run of a shared workspace has the same place in the cache of
    each machine.
    """
    folder = Path(run.data.tags.get(FOLDER_TAG, ""))
    if _is_of_this_workspace(run) and WORKSPACE.name in folder.parts:
        inside = folder.parts[folder.parts.index(WORKSPACE.name) + 1 :]
        return Path(os.path.normpath(WORKSPACE.resolve().joinpath(*inside)))
    return Path(os.path.normpath(workspace_identity.present_path(WORKSPACE, folder)))


def of_heartbeat(key: str, beat: str, stale_seconds: float | None = None) -> Liveness:
    """Return what a heartbeat says, compared with what this workspace has seen of it before.

    Args:
        key: the key of the owner, such as the id of its run.
        beat: the newest heartbeat; an empty one says nothing.
        stale_seconds: how long it has to stay the same until the owner counts as dead; by default
            `STALE_SECONDS`.
    """
    if not beat:
        return Liveness.UNKNOWN
    stale = STALE_SECONDS if stale_seconds is None else stale_seconds
    workspace, clock, now = WORKSPACE.resolve(), _clock(), time.monotonic()
    observation = _seen_here.get((workspace, key)) or _read(workspace).get(key)
    if observation is not None and observation.clock != clock:
        observation = None
    if observation is not None and observation.beat == beat:
        return Liveness.DEAD if now - observation.seconds >= stale else Liveness.UNKNOWN
    _note(workspace, key, _SeenHeartbeat(beat=beat, clock=clock, seconds=now))
    changed = observation is not None and now - observation.seconds < STALE_SECONDS
    return Liveness.ALIVE if changed else Liveness.UNKNOWN


def observe_owner(
    read: Callable[[], Run], on_wait: Callable[[float], None] | None = None
) -> Liveness:
    """Return whether the owner of a run is alive; observe its heartbeat until that is known.

    Args:
        read: a function that returns the run as the store has it now.
        on_wait: called once with the number of seconds that it may take, if it takes any.

    Returns:
        UNKNOWN only if the run has no heartbeat.
    """
    run = read()
    owner = of_run(run)
    if owner is not Liveness.UNKNOWN or not run.data.tags.get(HEARTBEAT_TAG):
        return owner
    if on_wait:
        on_wait(STALE_SECONDS)
    while owner is Liveness.UNKNOWN:
        time.sleep(min(_POLL_SECONDS, STALE_SECONDS / 4))
        owner = of_run(read())
    return owner


def lock_identity(file: Path) -> str:
    """Return the identity to record of a lock that this process holds.

    Returns:
        One that no lock has, but for the number of the file, on a file system where another process
        could acquire it all the same. An empty string where it cannot be had.
    """
    identity = file_locks.identity(file)
    if not identity or is_held(file):
        return identity
    return f"{_NO_LOCKS} {identity.rpartition(' ')[2]}"


def _clock() -> str:
    """Return what identifies the monotonic clock of this process."""
    namespace = ""
    with contextlib.suppress(OSError):  # a container may shift the clock
        namespace = str(Path("/proc/self/ns/time").stat().st_ino)
    return f"{file_locks.read_kernel_id()} {namespace}"


def _read(workspace: Path) -> dict[str, _SeenHeartbeat]:
    noted = _Observations.from_file_or_none(workspace / _OBSERVATIONS_FILE)
    return noted.observations if noted else {}


def _note(workspace: Path, key: str, observed: _SeenHeartbeat) -> None:
    """Remember a heartbeat, here and in the workspace if there is one.

    Two processes may overwrite each other's notes. That only delays a conclusion, because a
    heartbeat never returns to an earlier value.
    """
    _seen_here[workspace, key] = observed
    if not workspace.is_dir():
        return
    recent = {
        name: each
        for name, each in _read(workspace).items()
        if each.clock == observed.clock and observed.seconds - each.seconds < _KEPT_SECONDS
    }
    content = _Observations(observations={**recent, key: observed})
    with contextlib.suppress(OSError, StorageError):
        content.to_file(workspace / _OBSERVATIONS_FILE)
