"""Stop the servers of a folder: when its runs are done, or now."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from flows.services import child, family
from pipeline.errors import OrchestrationError
from pipeline.local_services import Services, is_supervised, state_file
from pipeline.run_memory import live_runs

Say = Callable[[str], None]

_LOOK_SECONDS = 0.5
_SAY_SECONDS = 30.0
_GRACE_SECONDS = 40.0
_SUPERVISOR_SECONDS = 60.0
_ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class GoingOn:
    """A run that uses the servers."""

    pid: int
    words: str


def stop(folder: Path, services: Services, *, now: bool, say: Say) -> int:
    """Stop the servers and return how many runs had to be stopped before.

    From the first moment no scheduled run begins. If this call is interrupted while it waits for
    the runs that go on, everything goes on.

    Args:
        folder: whose servers.
        services: what runs there.
        now: end the runs, as a signal would, instead of waiting for them.
        say: gets a line now and then.

    Raises:
        OrchestrationError: if another call waits already, or something cannot be ended.
    """
    with _nothing_begins(folder, now=now):
        stopped = _end_runs(folder, services, say) if now else 0
        _wait_for_runs(folder, services, say)
        _end_supervisor(folder, services)
    return stopped


def going_on(folder: Path, services: Services) -> list[GoingOn]:
    """Return the runs of this machine that use the servers: of the runner, and of terminals."""
    since = dt.datetime.fromisoformat(services.started_at).timestamp()
    found = {}
    for process in family.members(folder, family.FLOW_RUN):
        found[process.pid] = GoingOn(process.pid, f"a scheduled run (process {process.pid})")
    for record in live_runs.records(folder / ".patchline"):
        uses_them = record.pid in found or record.process_started >= since
        if record.is_here and uses_them and record.is_alive:
            began = dt.datetime.fromisoformat(record.started).astimezone()
            words = f"{record.what} (process {record.pid}, since {began:%H:%M})"
            found[record.pid] = GoingOn(record.pid, words)
    return list(found.values())


@contextmanager
def _nothing_begins(folder: Path, *, now: bool) -> Iterator[None]:
    lock = FileLock(child.draining_lock(folder))
    try:
        lock.acquire(timeout=_LOOK_SECONDS)
    except Timeout:
        if not now:
            raise OrchestrationError(
                "Another `patchline down` waits already for the runs that go on. Let it wait, or "
                "end the runs with `patchline down --now`."
            ) from None
    try:
        yield
    finally:
        lock.release()


def _wait_for_runs(folder: Path, services: Services, say: Say) -> None:
    said, said_at = "", 0.0
    while runs := going_on(folder, services):
        words = ", ".join(run.words for run in runs)
        if words != said or time.monotonic() - said_at > _SAY_SECONDS:
            say(f"Waiting for {words}; `patchline down --now` would stop it")
            said, said_at = words, time.monotonic()
        time.sleep(_LOOK_SECONDS)


def _end_runs(folder: Path, services: Services, say: Say) -> int:
    """End the runs, with those that begin meanwhile; MLflow and Prefect hear of it."""
    asked: set[int] = set()
    deadline = time.monotonic() + _GRACE_SECONDS
    while runs := going_on(folder, services):
        late = time.monotonic() > deadline
        for run in runs:
            if late:
                say(f"Killing {run.words}, which did not end within {_GRACE_SECONDS:.0f} s")
                _send(run.pid, signal.SIGKILL)
            elif run.pid not in asked:
                say(f"Stopping {run.words}")
                _send(run.pid, signal.SIGTERM)
            asked.add(run.pid)
        time.sleep(_LOOK_SECONDS)
    return len(asked)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _end_supervisor(folder: Path, services: Services) -> None:
    """End the supervisor, which ends the rest; what is left then is killed.

    Raises:
        OrchestrationError: if something goes on in spite of that.
    """
    _send(services.pid, signal.SIGTERM)
    deadline = time.monotonic() + _SUPERVISOR_SECONDS
    while is_supervised(folder) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS / 5)
    if is_supervised(folder):
        _send(services.pid, signal.SIGKILL)
    clear(folder)


def clear(folder: Path) -> None:
    """Take away what a supervisor that was killed has left.

    Raises:
        OrchestrationError: if a process cannot be ended.
    """
    family.clear(folder, _ORPHAN_SECONDS)
    state_file(folder).unlink(missing_ok=True)
    left = [process.pid for process in family.members(folder)]
    if left:
        raise OrchestrationError(
            f"The processes {', '.join(map(str, left))} do not end. End them with `kill -9`."
        )
