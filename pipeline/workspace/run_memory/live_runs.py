"""Which flow runs are alive: each has a record, and a lock that its process holds and touches.

The operating system releases the lock when the process ends, however it ends; processes that it
started do not inherit it. So a record whose very lock is free belongs to a process that was killed.
Where the lock says nothing, because locks have no effect there, or the workspace is on a volume
that another machine mounts, too, or was moved to another disk, a process that can be seen from here
is looked up by its id and its start. For any other, the time at which the lock file was last
touched is the heartbeat; `patchline.pipeline.workspace.tracking.liveness` judges both.

A record outlives its block until the process ends. Only then is Prefect sure to know the outcome: a
process that is killed in between would leave a run in Prefect that nobody closes.

A command acquires one more lock before it creates its flow run, whose tags name that lock. So the
owner of the run is known from the start, before there is a record.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import functools
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import PrivateAttr

from patchline.pipeline.errors import OrchestrationError, StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.file_locks import Liveness, acquire, holder_of, try_lock
from patchline.pipeline.workspace.tracking import liveness

if TYPE_CHECKING:
    from filelock import BaseFileLock

FOLDER = "live"
OWNER = "owner:"
"""Prefix of the tag that names the lock of a flow run's owner."""
_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WAIT_SECONDS = 5.0
_SAME_START_SECONDS = 1.0
"""Two readings of the start of one process differ by less."""
_held_here: dict[Path, BaseFileLock] = {}
"""The locks that this process holds, by file, including those of ended runs."""
_ended_here: set[Path] = set()


class LiveRun(FrozenModel):
    """A flow run and the process that executes it."""

    flow_run_id: str
    what: str
    """What it does, in messages: `training`, `watch`."""
    pid: int
    process_started: float
    """When the process began, in seconds since the epoch; with `pid` it identifies the process."""
    host: str
    """Name of the machine, in messages."""
    place: str = ""
    """Where `pid` means this process: a kernel and a namespace of processes."""
    lock: str = ""
    """Identity of the lock that the process holds."""
    started: str
    """When the record was written; ISO 8601, UTC."""
    ended: str | None = None
    """When its work ended, while the process may still exist."""
    sought: str | None = None
    """When a Prefect server did not know the run."""

    _lock_file: Path = PrivateAttr()

    @property
    def is_here(self) -> bool:
        """Whether its process, if there is one, is among those that this process can see."""
        return bool(self.place) and self.place == _place()

    @property
    def process_state(self) -> Liveness:
        """What is known about its process."""
        by_lock = holder_of(self._lock_file, liveness.CHECK_SECONDS, self.lock)
        if by_lock is not Liveness.UNKNOWN:
            return by_lock
        by_process = self._of_process() if self.is_here else Liveness.UNKNOWN
        return _of_heartbeat(self._lock_file) if by_process is Liveness.UNKNOWN else by_process

    @property
    def is_alive(self) -> bool:
        """Whether its process is known to be alive."""
        return self.process_state is Liveness.ALIVE

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to be gone."""
        return self.process_state is Liveness.DEAD

    def _of_process(self) -> Liveness:
        """Return what the processes that can be seen here say about it.

        A process with its id and another start says nothing: the id was given to another process,
        or the clock, by which starts are computed, was set.
        """
        import psutil

        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.process_started) >= _SAME_START_SECONDS:
                return Liveness.UNKNOWN
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return Liveness.UNKNOWN if _is_hidden(self.pid) else Liveness.DEAD
        except psutil.Error:
            return Liveness.UNKNOWN
        return Liveness.DEAD if is_zombie else Liveness.ALIVE

    def at(self, lock_file: Path) -> LiveRun:
        """Set the file of the record's lock, and return the record."""
        self._lock_file = lock_file
        return self

    def write(self) -> None:
        """Save the record.

        Raises:
            StorageError: if the folder may not be written.
        """
        self.to_file(_record_file(self._lock_file))

    def mark_sought(self) -> None:
        """Note in the record of a dead process that a Prefect server does not know the run."""
        if not self.is_dead:
            return
        with try_lock(self._lock_file) as locked:
            if locked and _record_file(self._lock_file).exists():
                self.model_copy(update={"sought": _now()}).at(self._lock_file).write()

    def remove(self) -> None:
        """Remove the record of a dead process; any other stays."""
        if not self.is_dead:
            return
        with try_lock(self._lock_file) as locked:
            if locked:
                _unlink(self._lock_file)


@contextmanager
def alive(workspace: Path, flow_run_id: str, what: str) -> Iterator[LiveRun]:
    """Record, while the block runs, that this process executes a flow run.

    Args:
        workspace: the folder `.patchline`.
        flow_run_id: Prefect's id of the run.
        what: what the process does, in messages.

    Raises:
        OrchestrationError: if another process executes it.
        StorageError: if the folder may not be written.
    """
    import psutil

    lock_file = _lock_file(workspace, flow_run_id)
    _hold(lock_file, flow_run_id)
    try:
        record = LiveRun(
            flow_run_id=flow_run_id,
            what=what,
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            host=socket.gethostname(),
            place=_place(),
            lock=liveness.lock_identity(lock_file),
            started=_now(),
        ).at(lock_file)
        record.write()
    except BaseException:
        _let_go(lock_file)
        raise
    try:
        yield record
    finally:
        _ended_here.add(lock_file)
        with contextlib.suppress(OSError, StorageError):
            record.model_copy(update={"ended": _now()}).at(lock_file).write()


@contextmanager
def owner(workspace: Path) -> Iterator[str]:
    """Yield the tag for flow runs that begin in the block, which this process owns.

    Raises:
        StorageError: if the folder may not be written.
    """
    name = f"owner-{uuid4().hex[:8]}"
    lock_file = _lock_file(workspace, name)
    _hold(lock_file, name)
    try:
        yield f"{OWNER}{name}:{_encode_identity(liveness.lock_identity(lock_file))}"
    finally:
        _ended_here.add(lock_file)


def owner_is_gone(workspace: Path, tags: Iterable[str]) -> bool:
    """Return whether a flow run was started by a process of this folder that no longer exists.

    It is False for a run without an owner's tag, for one that another folder or machine owns, and
    where it is not known.
    """
    owners = [tag.removeprefix(OWNER) for tag in tags if tag.startswith(OWNER)]
    return bool(owners) and all(_owner_is_gone(workspace, owner) for owner in owners)


def _owner_is_gone(workspace: Path, owner: str) -> bool:
    name, _, coded = owner.partition(":")
    if not _ID_PATTERN.fullmatch(name):
        return False
    lock_file = _lock_file(workspace, name)
    digest, _, number = coded.partition(".")
    present = file_locks.identity(lock_file)
    is_same = bool(present) and _encode_identity(present).partition(".")[0] == digest
    identity = present if is_same else f"elsewhere {number}"
    state = holder_of(lock_file, liveness.CHECK_SECONDS, identity)
    if state is Liveness.UNKNOWN and file_locks.same_file(lock_file, identity):
        state = _of_heartbeat(lock_file)  # the lock file in a copy is another one
    return state is Liveness.DEAD


def _encode_identity(identity: str) -> str:
    """Return a short form of a lock's identity: a digest, and the number of the file."""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{digest}.{identity.rpartition(' ')[2]}"


def _of_heartbeat(lock_file: Path) -> Liveness:
    """Return what the last touch of a lock file says about its holder.

    A file beside its record is the one that the holder touches, even if a move to another disk has
    changed its number; a copy of a workspace keeps no records.
    """
    with contextlib.suppress(OSError):
        return liveness.of_heartbeat(f"live/{lock_file.stem}", str(lock_file.stat().st_mtime_ns))
    return Liveness.UNKNOWN


def _is_hidden(pid: int) -> bool:
    """Return whether a process exists that may not be looked at: another user's."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _place() -> str:
    """Return where the ids of processes mean what they mean here."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    kernel = file_locks.read_kernel_id()
    return f"{kernel} {namespace}" if kernel else ""


def _hold(lock_file: Path, flow_run_id: str) -> None:
    for ended in list(_ended_here):  # Prefect knows their outcome, or retries them now
        _let_go(ended)
    lock = acquire(lock_file, _WAIT_SECONDS)
    if lock is None:
        raise OrchestrationError(
            f"Another process is executing the flow run {flow_run_id} (see {lock_file.parent}). "
            "Wait for it to end, or cancel it."
        )
    _held_here[lock_file] = lock
    _build_periodic_touch()


@functools.cache
def _build_periodic_touch() -> Periodic:
    return Periodic(_touch, liveness.BEAT_SECONDS, 0)


def _touch() -> None:
    for lock_file in list(_held_here):
        with contextlib.suppress(OSError):  # the folder may be gone, or its disk full
            os.utime(lock_file)


def _let_go(lock_file: Path) -> None:
    _ended_here.discard(lock_file)
    _unlink(lock_file)
    _held_here.pop(lock_file).release()


@atexit.register
def _let_go_of_ended() -> None:
    for lock_file in list(_ended_here):
        with contextlib.suppress(Exception):  # the folder may be gone
            _let_go(lock_file)


def _forget() -> None:
    _build_periodic_touch.cache_clear()  # threads do not survive a fork
    _held_here.clear()
    _ended_here.clear()


if hasattr(os, "register_at_fork"):  # a forked child owns none of it
    os.register_at_fork(after_in_child=_forget)


def records(workspace: Path) -> list[LiveRun]:
    """Return the records in a workspace, oldest first.

    One that cannot be read is left out, and so are the runs that this very process has ended.
    """
    records = []
    for file in (workspace.resolve() / FOLDER).glob("*.json"):
        lock_file = file.with_suffix(".lock")
        if lock_file in _ended_here:
            continue
        if record := LiveRun.from_file_or_none(file):
            records.append(record.at(lock_file))
    return sorted(records, key=lambda record: (record.started, record.flow_run_id))


def _lock_file(workspace: Path, flow_run_id: str) -> Path:
    if not _ID_PATTERN.fullmatch(flow_run_id):
        raise OrchestrationError(
            f"{flow_run_id!r} is not the id of a flow run. Start the flow through Prefect."
        )
    return workspace.resolve() / FOLDER / f"{flow_run_id}.lock"


def _record_file(lock_file: Path) -> Path:
    return lock_file.with_name(f"{lock_file.stem}.json")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def _unlink(lock_file: Path) -> None:
    """Remove a record and its lock file; the caller holds the lock."""
    with contextlib.suppress(OSError):
        _record_file(lock_file).unlink(missing_ok=True)
        lock_file.unlink(missing_ok=True)
