"""Which flow runs are alive on this machine: each has a record and a lock that its process holds.

The operating system releases the lock when the process ends, however it ends; processes that it
started do not inherit it. So a record with a free lock belongs to a process that was killed.

A record outlives its block until the process ends. Only then is Prefect sure to know the outcome: a
process that is killed in between would leave a run in Prefect that nobody closes.

A command acquires one more lock before it creates its flow run, whose tags name that lock. So the
owner of the run is known from the start, before there is a record.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import PrivateAttr, ValidationError

from pipeline.errors import OrchestrationError, StorageError
from pipeline.files.atomic_files import write_text
from pipeline.files.file_locks import acquire, is_held, try_lock
from pipeline.section import Section

if TYPE_CHECKING:
    from filelock import BaseFileLock

FOLDER = "live"
OWNER = "owner:"
"""Prefix of the tag that names the lock of a flow run's owner."""
_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WAIT_SECONDS = 5.0
_held_here: dict[Path, BaseFileLock] = {}
"""The locks that this process holds, by file, including those of ended runs."""
_ended_here: set[Path] = set()


class LiveRun(Section):
    """A flow run and the process that executes it."""

    flow_run_id: str
    what: str
    """What it does, in messages: `training`, `watch`."""
    pid: int
    process_started: float
    """When the process began, in seconds since the epoch; with `pid` it identifies the process."""
    host: str
    started: str
    """When the record was written; ISO 8601, UTC."""
    ended: str | None = None
    """When its work ended, while the process may still exist."""
    sought: str | None = None
    """When a Prefect server did not know the run."""

    _lock_file: Path = PrivateAttr()

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, so that its lock is meaningful."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether its lock is held; a run of another machine always counts as alive."""
        return not self.is_here or is_held(self._lock_file)

    def at(self, lock_file: Path) -> LiveRun:
        """Set the file of the record's lock, and return the record."""
        self._lock_file = lock_file
        return self

    def write(self) -> None:
        """Save the record.

        Raises:
            StorageError: if the folder may not be written.
        """
        write_text(_record_file(self._lock_file), self.model_dump_json(indent=2))

    def mark_sought(self) -> None:
        """Note in the record of a dead process that a Prefect server does not know the run."""
        with try_lock(self._lock_file) as locked:
            if locked and _record_file(self._lock_file).exists():
                self.model_copy(update={"sought": _now()}).at(self._lock_file).write()

    def remove(self) -> None:
        """Remove the record of a dead process; that of a live one stays."""
        if not self.is_here:
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
        what: what it does, in messages.

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
    name = f"{_folder_name(workspace)}-{uuid4().hex[:8]}"
    lock_file = _lock_file(workspace, name)
    _hold(lock_file, name)
    try:
        yield f"{OWNER}{name}"
    finally:
        _ended_here.add(lock_file)


def owner_is_gone(workspace: Path, tags: Iterable[str]) -> bool:
    """Return whether a flow run was started by a process of this folder that no longer exists.

    It is False for a run without an owner's tag, and for one that another folder or machine owns.
    """
    own = f"{OWNER}{_folder_name(workspace)}-"
    names = [tag.removeprefix(OWNER) for tag in tags if tag.startswith(own)]
    return bool(names) and not any(is_held(_lock_file(workspace, name)) for name in names)


def _folder_name(workspace: Path) -> str:
    """Return the digest that identifies this folder and machine in the tags of its runs."""
    where = f"{socket.gethostname()}:{workspace.resolve()}"
    return hashlib.sha256(where.encode()).hexdigest()[:8]


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
    _held_here.clear()
    _ended_here.clear()


if hasattr(os, "register_at_fork"):  # a forked child owns none of it
    os.register_at_fork(after_in_child=_forget)


def records(workspace: Path) -> list[LiveRun]:
    """Return the records in a workspace, oldest first.

    One that cannot be read is left out, and so are the runs that this very process has ended.
    """
    found = []
    for file in (workspace.resolve() / FOLDER).glob("*.json"):
        lock_file = file.with_suffix(".lock")
        if lock_file in _ended_here:
            continue
        try:
            record = LiveRun.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            continue  # it ended meanwhile, or a newer Patchline wrote it
        found.append(record.at(lock_file))
    return sorted(found, key=lambda record: (record.started, record.flow_run_id))


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
