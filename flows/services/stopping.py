"""Stop the servers of a folder: once active runs finish, or now."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from patchline.flows.services import service_processes
from patchline.pipeline import local_services
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.local_services import (
    Services,
    is_supervised,
    services_folder,
    state_file,
    supervisor_lock,
    wait_until_running,
)
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.workspace.files.file_locks import is_held, try_lock
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs

Say = Callable[[str], None]

_LOOK_SECONDS = 0.5
_CHECK_SECONDS = 1.0
_SAY_SECONDS = 30.0
_GRACE_SECONDS = 40.0
_SUPERVISOR_SECONDS = 60.0
_ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class ActiveRun:
    """A run that uses the servers."""

    pid: int
    description: str


@dataclass(frozen=True)
class Supervised:
    """The supervisor of a folder's servers."""

    pid: int
    since: float
    """When its servers became ready, or it began: in seconds since the epoch."""

    @classmethod
    def of(cls, services: Services) -> Supervised:
        """Return the supervisor that the state names."""
        return cls(services.pid, dt.datetime.fromisoformat(services.started_at).timestamp())


def find_supervisor(folder: Path) -> Supervised | None:
    """Return the supervisor of a folder: by the state, or by its process if the state is damaged.

    None if no supervisor is alive.
    """
    if services := wait_until_running(folder):
        return Supervised.of(services)
    return supervisor_process(folder)


def supervisor_process(folder: Path) -> Supervised | None:
    """Return the supervisor of a folder by its command line; none if it is not alive."""
    for process in service_processes.members(folder, service_processes.SUPERVISOR):
        return Supervised(process.pid, process.create_time())
    return None


def is_supervised_elsewhere(folder: Path) -> bool:
    """Return whether the supervisor is alive although none of this machine's processes is it.

    The process id in the state says nothing: in another container, it is that of any process. The
    lock must stay held for a moment, because whoever checks a lock holds it, too.
    """
    is_here = supervisor_process(folder) is not None
    return not is_here and is_held(supervisor_lock(folder), _CHECK_SECONDS)


def stop(folder: Path, supervisor: Supervised, *, now: bool, say: Say) -> int:
    """Stop the servers, and return how many runs were stopped first.

    No scheduled run begins meanwhile. If this call is interrupted while it waits for active runs,
    the runs and the servers keep running.

    Args:
        folder: the working directory of the servers.
        supervisor: the supervisor of the servers in that folder.
        now: stop the runs with a signal instead of waiting for them.
        say: called with a line now and then.

    Raises:
        OrchestrationError: if another call is already waiting, or a process cannot be ended.
    """
    with _drain(folder, now=now):
        stopped = _end_runs(folder, supervisor, say) if now else 0
        _wait_for_runs(folder, supervisor, say)
        _end_supervisor(folder)
    return stopped


def is_draining(folder: Path) -> bool:
    """Return whether `patchline down` is waiting for active runs, so that no run may begin."""
    return is_held(_draining_lock(folder))


def active_runs(folder: Path, supervisor: Supervised) -> list[ActiveRun]:
    """Return the runs on this machine that use the servers: of the runner, and of terminals."""
    runs = {}
    for process in service_processes.members(folder, service_processes.FLOW_RUN):
        runs[process.pid] = ActiveRun(process.pid, f"a scheduled run (process {process.pid})")
    for record in live_runs.records(folder / WORKSPACE):
        uses_them = record.pid in runs or record.process_started >= supervisor.since
        if record.is_here and uses_them and record.is_alive:
            began = dt.datetime.fromisoformat(record.started).astimezone()
            description = f"{record.what} (process {record.pid}, since {began:%H:%M})"
            runs[record.pid] = ActiveRun(record.pid, description)
    return list(runs.values())


@contextmanager
def _drain(folder: Path, *, now: bool) -> Iterator[None]:
    with try_lock(_draining_lock(folder), _LOOK_SECONDS) as locked:
        if not locked and not now:
            raise OrchestrationError(
                "Another `patchline down` is already waiting for active runs. Let it wait, or stop "
                "the runs with `patchline down --now`."
            )
        yield


def _draining_lock(folder: Path) -> Path:
    return services_folder(folder) / "draining.lock"


def _wait_for_runs(folder: Path, supervisor: Supervised, say: Say) -> None:
    said, said_at = "", 0.0
    while runs := active_runs(folder, supervisor):
        described = ", ".join(run.description for run in runs)
        if described != said or time.monotonic() - said_at > _SAY_SECONDS:
            say(f"Waiting for {described}; stop it with `patchline down --now`")
            said, said_at = described, time.monotonic()
        time.sleep(_LOOK_SECONDS)


def _end_runs(folder: Path, supervisor: Supervised, say: Say) -> int:
    """Stop the runs, including those that begin meanwhile; MLflow and Prefect record it."""
    signalled: set[int] = set()
    deadline = time.monotonic() + _GRACE_SECONDS
    while runs := active_runs(folder, supervisor):
        late = time.monotonic() > deadline
        for run in runs:
            if late:
                say(f"Killing {run.description}, which did not end within {_GRACE_SECONDS:.0f} s")
                _send(run.pid, signal.SIGKILL)
            elif run.pid not in signalled:
                say(f"Stopping {run.description}")
                _send(run.pid, signal.SIGTERM)
            signalled.add(run.pid)
        time.sleep(_LOOK_SECONDS)
    return len(signalled)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _end_supervisor(folder: Path) -> None:
    """End the supervisor, which ends the rest; kill what is left.

    Raises:
        OrchestrationError: if a process does not end.
    """
    _signal_supervisor(folder, signal.SIGTERM)
    if not wait_until(lambda: not is_supervised(folder), _LOOK_SECONDS / 5, _SUPERVISOR_SECONDS):
        _signal_supervisor(folder, signal.SIGKILL)
    clear(folder)


def _signal_supervisor(folder: Path, number: signal.Signals) -> None:
    """Send a signal to what is the supervisor now: a number in a file may be anybody's by now."""
    for process in service_processes.members(folder, service_processes.SUPERVISOR):
        _send(process.pid, number)


def clear(folder: Path) -> bool:
    """Remove what a supervisor left behind: processes, the state, the secret, its lifeline.

    A killed supervisor removes nothing, and one whose folder was moved removes only its processes.

    Returns:
        Whether there were any processes.

    Raises:
        OrchestrationError: if a process cannot be ended.
    """
    were_there = bool(service_processes.members(folder))
    service_processes.clear(folder, _ORPHAN_SECONDS)
    state_file(folder).unlink(missing_ok=True)
    left = [process.pid for process in service_processes.members(folder)]
    if left:
        raise OrchestrationError(
            f"{len(left)} processes are still running. Kill them with "
            f"`kill -9 {' '.join(map(str, left))}`."
        )
    local_services.forget_login(folder)
    for lifeline in services_folder(folder).glob("lifeline-*"):
        lifeline.unlink(missing_ok=True)
    return were_there
