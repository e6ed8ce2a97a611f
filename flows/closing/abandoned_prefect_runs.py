"""Prefect flow runs whose process was killed: found, and set to the state that fits MLflow's run.

MLflow's side is `patchline.pipeline.workspace.tracking.tracked_run`. The records of
`patchline.pipeline.workspace.run_memory.live_runs` tell which processes are alive. Some flow runs
have no record: their process was killed before it wrote one, or never started. A command's run is
then known by its owner's tag. A deployment's run is only judged on a server on this machine, where
its process cannot be elsewhere. Any other run without a record is left alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psutil
from prefect import State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Crashed, Failed

from patchline.flows.prefect_api import folder_labels
from patchline.flows.prefect_api.prefect_client import flow_runs
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.live_runs import LiveRun

logger = logging.getLogger(__name__)

_WORKING = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_UNFINISHED = sorted(set(StateType) - TERMINAL_STATES)
_START_SECONDS = 40.0
"""How long a run may take from its start to its record."""
_CANCEL_SECONDS = 20.0
"""How long a runner may take to end a cancelled run before it is ended here."""
_STOP_SECONDS = 10.0
_KEEP_SECONDS = 24 * 3600.0
_ID_VARIABLE = "PREFECT__FLOW_RUN_ID"
_SLACK_SECONDS = 2.0
_CLOCK_SECONDS = 300.0
"""Maximum clock difference to another machine."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class NewestRun:
    """The newest MLflow run of a flow run."""

    run_id: str | None
    status: str | None
    """FINISHED, FAILED, KILLED or RUNNING; none if there is no run."""


WorkOf = Callable[[str], NewestRun | None]
"""Maps a flow run's id to its MLflow run; none while MLflow does not answer."""


def close(workspace: Path, work_of: WorkOf) -> list[str]:
    """Close the flow runs of this folder whose process is gone, and end cancelled ones.

    Args:
        workspace: the folder `.patchline`.
        work_of: returns the MLflow run of a flow run.

    Returns:
        A sentence for each that was closed.
    """
    # Records first: a run's record exists until Prefect knows the outcome.
    records = {record.flow_run_id: record for record in live_runs.records(workspace)}
    with get_client(sync_client=True) as client:
        closer = _Closer(client, work_of, records)
        working = flow_runs(client, {"state": {"type": {"any_": _WORKING}}})
        for flow_run in working:
            closer.check_run(flow_run)
        for flow_run in closer.without_record:
            closer.check_unrecorded(flow_run, workspace)
        working_ids = {str(flow_run.id) for flow_run in working}
        for record in records.values():
            if record.flow_run_id not in working_ids:
                closer.check_record(record)
        return closer.sentences


class _Closer:
    """One pass over all flow runs and their records."""

    def __init__(
        self, client: SyncPrefectClient, work_of: WorkOf, records: Mapping[str, LiveRun]
    ) -> None:
        self._client = client
        self._work_of = work_of
        self._records = records
        self.without_record: list[FlowRun] = []
        self.sentences: list[str] = []

    def check_run(self, flow_run: FlowRun) -> None:
        """Close an active run whose record belongs to a dead process; end a cancelled one."""
        record = self._records.get(str(flow_run.id))
        if record is None or (record.is_dead and _began_again(flow_run, record)):
            self.without_record.append(flow_run)
        elif record.is_dead:
            self._finish(flow_run)
        elif not record.is_here:
            self._follow_other_machine(flow_run)
        elif record.is_alive and _must_stop(flow_run) and _stop(_process(record)):
            self._finish(flow_run, stopped=True)

    def check_unrecorded(self, flow_run: FlowRun, workspace: Path) -> None:
        """Close an active run without a record if it is this folder's and no process executes it.

        A subflow ends with its parent.
        """
        if live_runs.owner_is_gone(workspace, flow_run.tags):
            self._finish(flow_run)
        elif _age(flow_run) < _START_SECONDS or not _server_is_visible():
            return
        elif flow_run.parent_task_run_id is not None:
            if self._parent_is_over(flow_run.parent_task_run_id):
                self._finish(flow_run)
        elif flow_run.deployment_id and self._is_ours(flow_run.deployment_id, workspace.parent):
            processes = _processes_of(flow_run)
            if not processes:
                self._finish(flow_run)
            elif _must_stop(flow_run) and all(map(_stop, processes)):
                self._finish(flow_run, stopped=True)

    def check_record(self, record: LiveRun) -> None:
        """Remove the record of a dead process whose run has ended, and correct the run's state."""
        try:
            flow_run = self._client.read_flow_run(UUID(record.flow_run_id))
        except (ObjectNotFound, ValueError):
            self._keep_for_another_server(record)
            return
        if not record.is_dead:
            may_stop = record.is_alive and record.is_here and not record.ended
            cancelled = may_stop and _was_cancelled(flow_run)
            if cancelled and _stop(_process(record)):
                self._finish(flow_run, stopped=True)
            return
        state = flow_run.state
        will_never_start = flow_run.deployment_id is None and bool(state and state.is_scheduled())
        ended_unsuccessfully = bool(state and state.is_final() and not state.is_completed())
        if will_never_start or (ended_unsuccessfully and self._was_done(flow_run)):
            self._finish(flow_run)
        elif self._work_of(record.flow_run_id) is not None:
            record.remove()

    def _finish(self, flow_run: FlowRun, *, stopped: bool = False) -> None:
        """Set a run, its tasks and its subflows to the state that fits MLflow's run.

        A process that was stopped here has already marked its run as crashed while it ended.
        """
        before, now = flow_run.state, self._client.read_flow_run(flow_run.id).state
        if before is None or now is None or (now.id != before.id and not stopped):
            return  # another process was faster; the next pass sees the outcome
        work = self._work_of(str(flow_run.id))
        state = _final_state(before, work)
        self._client.set_flow_run_state(flow_run.id, state, force=True)
        self._finish_tasks(flow_run, state)
        self.sentences.append(f"{flow_run.name}: {state.name}, {state.message}")
        for child in self._children(flow_run):
            record = self._records.get(str(child.id))
            if record is None or record.is_dead:
                self._finish(child)
        record = self._records.get(str(flow_run.id))
        if record is not None and work is not None:
            record.remove()

    def _finish_tasks(self, flow_run: FlowRun, state: State) -> None:
        open_tasks = self._client.read_task_runs(
            flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [flow_run.id]}}),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNFINISHED))
            ),
        )
        ended = Cancelled if state.is_cancelled() else Crashed
        for task_run in open_tasks:
            closed: State = ended(message="The process of its flow run is gone.")
            self._client.set_task_run_state(task_run.id, closed, force=True)

    def _children(self, flow_run: FlowRun) -> list[FlowRun]:
        own = {"parent_flow_run_id": {"any_": [flow_run.id]}}
        return flow_runs(self._client, {**own, "state": {"type": {"any_": _WORKING}}})

    def _parent_is_over(self, parent_task_run_id: UUID) -> bool:
        try:
            task_run = self._client.read_task_run(parent_task_run_id)
            if task_run.flow_run_id is None:
                return False
            parent = self._client.read_flow_run(task_run.flow_run_id)
        except ObjectNotFound:
            return True
        return bool(parent.state and parent.state.is_final())

    def _follow_other_machine(self, flow_run: FlowRun) -> None:
        """Close a run whose process cannot be seen only a day after its MLflow run was killed."""
        work = self._work_of(str(flow_run.id))
        if work and work.status == "KILLED" and _age(flow_run) > _KEEP_SECONDS:
            self._finish(flow_run)

    def _is_ours(self, deployment_id: UUID, folder: Path) -> bool:
        try:
            deployment = self._client.read_deployment(deployment_id)
        except ObjectNotFound:
            return False
        return folder_labels.are_of(deployment.labels, folder)

    def _was_done(self, flow_run: FlowRun) -> bool:
        work = self._work_of(str(flow_run.id))
        return work is not None and work.status == "FINISHED"

    def _keep_for_another_server(self, record: LiveRun) -> None:
        began = dt.datetime.fromisoformat(record.started).timestamp()
        if not record.is_dead:
            return
        if time.time() - began > _KEEP_SECONDS:
            record.remove()
        elif record.sought is None:
            record.mark_sought()


def _final_state(now: State, work: NewestRun | None) -> State:
    """Return the final state of a run whose process is gone."""
    status = work.status if work else None
    if status == "FINISHED":
        return Completed(message="it had finished when its process was killed")
    if status == "FAILED":
        return Failed(message="it had failed when its process was killed")
    if now.is_cancelling() or now.is_cancelled():
        return Cancelled(message="it was cancelled and its process has ended")
    if work is None or work.run_id is None:
        return Crashed(message="its process was killed; start it again")
    return Crashed(
        message=f"its process was killed; resume it with `patchline run --resume {work.run_id}`"
    )


def _age(flow_run: FlowRun) -> float:
    """Return how many seconds a run has been in its state."""
    return time.time() - flow_run.state.timestamp.timestamp() if flow_run.state else 0.0


def _began_again(flow_run: FlowRun, record: LiveRun) -> bool:
    """Return whether a record belongs to an earlier attempt at a run that is being retried."""
    state = flow_run.state
    if state is None or state.is_cancelling():
        return False
    slack = _SLACK_SECONDS if _server_is_here() else _CLOCK_SECONDS
    began = dt.datetime.fromisoformat(record.started)
    return (state.timestamp - began).total_seconds() > slack


def _must_stop(flow_run: FlowRun) -> bool:
    """Return whether a run was cancelled and no runner will end it."""
    if not flow_run.state or not flow_run.state.is_cancelling():
        return False
    return flow_run.deployment_id is None or _age(flow_run) > _CANCEL_SECONDS


def _was_cancelled(flow_run: FlowRun) -> bool:
    cancelled = bool(flow_run.state and flow_run.state.is_cancelled())
    return cancelled and _age(flow_run) > _CANCEL_SECONDS


def _process(record: LiveRun) -> psutil.Process | None:
    """Return the process of a record; none if it is gone or its id was reused."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.process_started) < 1:
            return process
    return None


def _stop(process: psutil.Process | None) -> bool:
    """End a process, which stops its own workers; return whether it has ended."""
    if process is None:
        return True
    if process.pid == os.getpid():
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(_STOP_SECONDS)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _server_is_here() -> bool:
    return urlsplit(get_current_settings().api.url or "").hostname in _LOOPBACK


def _server_is_visible() -> bool:
    """Return whether the server's process is among those that this process can see.

    Then so are the processes of its runs. A loopback address alone may lead into another container,
    or through a tunnel.
    """
    port = urlsplit(get_current_settings().api.url or "").port
    if not _server_is_here() or not sys.platform.startswith("linux"):
        return _server_is_here()
    listening = (
        each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN
    )
    return any(each.pid for each in listening if each.laddr and each.laddr.port == port)


def _processes_of(flow_run: FlowRun) -> list[psutil.Process]:
    """Return this user's processes that a runner started for a run."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_ID_VARIABLE) == str(flow_run.id):
                processes.append(process)
    return processes
