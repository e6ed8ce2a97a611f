"""Close runs that killed processes left open, in MLflow and in Prefect, so that both agree.

The MLflow side is `patchline.pipeline.workspace.tracking.tracked_run`, the Prefect side
`patchline.flows.closing.abandoned_prefect_runs`. Any number of processes may call this at any time:
one does the work, the others return at once. Active runs are never touched.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.pipeline.errors import OrchestrationError, PipelineError, TrackingError
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, is_read_only
from patchline.pipeline.workspace.run_memory import cleaning, live_runs
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracking_store import all_runs, client, store_exists

if TYPE_CHECKING:
    from prefect import Flow, State
    from prefect.client.schemas.objects import FlowRun

    from patchline.flows.closing.abandoned_prefect_runs import NewestRun

logger = logging.getLogger(__name__)

_LOCK_FILE = "closing.lock"
_SWEEP_SECONDS = 3600.0
_swept_at: dict[Path, float] = {}


def close_abandoned_runs() -> list[str]:
    """Close what killed processes left open in MLflow and in Prefect, and delete their leftovers.

    The Prefect side is skipped while Prefect's settings name no server and `patchline up` is down.

    Returns:
        A sentence for each run that was closed.

    Raises:
        TrackingError: if MLflow does not answer; the Prefect side is closed nevertheless.
    """
    workspace = WORKSPACE.resolve()
    with try_lock(workspace / _LOCK_FILE) as is_only_one:
        if not is_only_one:
            return []
        said, failure = [], None
        try:
            said += _close_in_mlflow()
        except TrackingError as error:
            failure = error
        said += _close_in_prefect(workspace)
        _clear_up(workspace)
    if failure:
        raise failure
    return said


def close_before_command() -> list[str]:
    """Close abandoned runs for a command without Prefect; start a server only if needed.

    Returns:
        A sentence for each run that was closed.
    """
    from patchline.pipeline import local_services

    workspace = WORKSPACE.resolve()
    if is_read_only():
        return []  # whoever may write to it closes them
    if local_services.find_running():
        return []  # its keeper does this within seconds, and sends the events
    if not _has_left_open(workspace):
        return describe_closed_runs(tracked_run.close_abandoned())
    from patchline.flows import prefect_session

    with prefect_session.server(), prefect_session.ready():
        return close_abandoned_runs()


def tell_closed() -> None:
    """Close abandoned runs at the start of a command, and report it on standard error."""
    for sentence in close_before_command():
        print(sentence, file=sys.stderr)


def on_crashed(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:  # noqa: ARG001
    """Close the MLflow run of a flow run that crashed; a Prefect hook, called by the runner."""
    _close_work_of(str(flow_run.id))


def on_cancellation(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:  # noqa: ARG001
    """Close the MLflow run of a flow run that was cancelled; a Prefect hook."""
    _close_work_of(str(flow_run.id))


def describe_closed_runs(run_ids: list[str]) -> list[str]:
    """Say which MLflow runs were closed."""
    return [
        f"run {run_id} was left open by a killed process and is closed now" for run_id in run_ids
    ]


def _close_work_of(flow_run_id: str) -> None:
    """Close runs without an owner; a run that still has one ends by itself."""
    try:
        closed = tracked_run.close_abandoned()
        _tell_killed(closed)
        for run_id in closed:
            logger.info("closed the MLflow run %s after flow run %s", run_id, flow_run_id)
    except PipelineError:  # the keeper, or the next command, tries again
        logger.warning("the MLflow run of flow run %s stays open", flow_run_id, exc_info=True)


def _has_left_open(workspace: Path) -> bool:
    """Return whether a process died whose flow run may still be open in Prefect."""
    return any(record.is_dead and record.sought is None for record in live_runs.records(workspace))


def _close_in_mlflow() -> list[str]:
    closed = tracked_run.close_abandoned()
    _tell_killed(closed)
    return describe_closed_runs(closed)


def _tell_killed(run_ids: list[str]) -> None:
    """Send an event for each run whose process was found dead."""
    from patchline.flows.notifications import events

    for run_id in run_ids:
        run = client().get_run(run_id)
        name = client().get_experiment(run.info.experiment_id).name
        facts = {"name": name, "run_id": run_id, "reason": "its process was found dead"}
        events.emit(events.RUN_KILLED, f"patchline.run.{run_id}", facts)


def _close_in_prefect(workspace: Path) -> list[str]:
    import httpx

    with _prefect() as reachable:
        if not reachable:
            return []
        from patchline.flows.closing import abandoned_prefect_runs

        try:
            return abandoned_prefect_runs.close(workspace, _work_of)
        except httpx.HTTPError as error:
            logger.warning("Prefect does not answer; closing will be retried: %s", error)
            return []


@contextmanager
def _prefect() -> Iterator[bool]:
    """Use the server in Prefect's settings or that of `patchline up`; yield whether one exists."""
    from patchline.flows import prefect_session

    with contextlib.ExitStack() as stack:
        reachable = False
        with contextlib.suppress(OrchestrationError):
            stack.enter_context(prefect_session.connect())
            reachable = True
        yield reachable


def _work_of(flow_run_id: str) -> NewestRun | None:
    """Return the MLflow run of a flow run; none while MLflow does not answer."""
    from patchline.flows.closing.abandoned_prefect_runs import NewestRun

    try:
        if not store_exists():
            return NewestRun(None, None)
        run = next(all_runs(f"tags.`{tracked_run.FLOW_RUN_TAG}` = '{flow_run_id}'"), None)
    except Exception as error:  # noqa: BLE001 - a store fails in many ways; all mean "retry"
        logger.warning("MLflow does not answer; closing will be retried: %s", error)
        return None
    return NewestRun(run.info.run_id, run.info.status) if run else NewestRun(None, None)


def _clear_up(workspace: Path) -> None:
    """Delete unfinished files of killed processes, at most once an hour."""
    if time.monotonic() - _swept_at.get(workspace, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
        return
    _swept_at[workspace] = time.monotonic()
    for path in cleaning.remove_leftovers(workspace):
        logger.info("removed %s, which a killed process left unfinished", path)
