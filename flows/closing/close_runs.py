"""Bring Prefect and MLflow to agree after a process was killed or a run was cancelled.

Everything here can be called at any time by any number of processes: one of them works, the others
leave it to that one. What is alive is never touched.
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

from filelock import FileLock, Timeout

from pipeline.errors import OrchestrationError, PipelineError, TrackingError
from pipeline.files.atomic_files import storage_errors
from pipeline.run_memory import leftovers, live_runs
from pipeline.tracking import tracked_run
from pipeline.tracking.tracking_store import all_runs, client, store_exists
from pipeline.workspace import WORKSPACE, make_folder

if TYPE_CHECKING:
    from prefect import Flow, State
    from prefect.client.schemas.objects import FlowRun

    from flows.closing.prefect_runs import Work

logger = logging.getLogger(__name__)

_LOCK_FILE = "closing.lock"
_SWEEP_SECONDS = 3600.0
_swept_at: dict[Path, float] = {}


def close_abandoned_runs() -> list[str]:
    """Close what killed processes left open in MLflow and in Prefect, and clear up behind them.

    Prefect's side is left out while Prefect's settings name no server and `patchline up` is down.

    Returns:
        A sentence for each run that was closed.

    Raises:
        TrackingError: if MLflow does not answer; Prefect's side was done.
    """
    workspace = WORKSPACE.resolve()
    with _alone(workspace) as alone:
        if not alone:
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
    """Do the same for a command that needs no Prefect, which starts one only to close something.

    Returns:
        A sentence for each run that was closed.
    """
    from pipeline import local_services

    workspace = WORKSPACE.resolve()
    if local_services.running():
        return []  # its keeper does it within seconds, and tells who wants to know
    if not _left_open(workspace):
        return tracking_sentences(tracked_run.close_abandoned())
    from flows import prefect_session

    with prefect_session.server(), prefect_session.ready():
        return close_abandoned_runs()


def tell_closed() -> None:
    """Close what was left open, and say so on standard error; what a command begins with."""
    for sentence in close_before_command():
        print(sentence, file=sys.stderr)


def on_crashed(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:  # noqa: ARG001
    """Close the MLflow run of a flow run that crashed; a Prefect hook, called by the runner."""
    _close_work_of(str(flow_run.id))


def on_cancellation(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:  # noqa: ARG001
    """Close the MLflow run of a flow run that was cancelled; a Prefect hook."""
    _close_work_of(str(flow_run.id))


def tracking_sentences(run_ids: list[str]) -> list[str]:
    """Say which MLflow runs were closed."""
    return [
        f"run {run_id} was left open by a killed process and is closed now" for run_id in run_ids
    ]


def _close_work_of(flow_run_id: str) -> None:
    """Close what has no owner; a run that is still owned ends by itself."""
    try:
        closed = tracked_run.close_abandoned()
        _tell_killed(closed)
        for run_id in closed:
            logger.info("closed the MLflow run %s after flow run %s", run_id, flow_run_id)
    except PipelineError:  # the keeper, or the next command, tries again
        logger.warning("the MLflow run of flow run %s stays open", flow_run_id, exc_info=True)


def _left_open(workspace: Path) -> bool:
    """Return whether a process died whose flow run may be open in a Prefect of this folder."""
    return any(
        not record.is_alive and record.sought is None for record in live_runs.records(workspace)
    )


@contextmanager
def _alone(workspace: Path) -> Iterator[bool]:
    """Hold the lock of closing, or say that somebody else does."""
    lock_file = workspace / _LOCK_FILE
    with storage_errors(lock_file):
        make_folder(workspace)
        lock = FileLock(lock_file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


def _close_in_mlflow() -> list[str]:
    closed = tracked_run.close_abandoned()
    _tell_killed(closed)
    return tracking_sentences(closed)


def _tell_killed(run_ids: list[str]) -> None:
    """Send an event for each run that was found dead."""
    from flows.notifications import events
    from pipeline.automation import event_kinds

    for run_id in run_ids:
        run = client().get_run(run_id)
        name = client().get_experiment(run.info.experiment_id).name
        facts = {"name": name, "run_id": run_id, "reason": "its process was found dead"}
        events.emit(event_kinds.RUN_KILLED, f"patchline.run.{run_id}", facts)


def _close_in_prefect(workspace: Path) -> list[str]:
    import httpx

    with _prefect() as reachable:
        if not reachable:
            return []
        from flows.closing import prefect_runs

        try:
            return prefect_runs.close(workspace, _work_of)
        except httpx.HTTPError as error:
            logger.warning("Prefect does not answer; closing goes on later: %s", error)
            return []


@contextmanager
def _prefect() -> Iterator[bool]:
    """Use the server that Prefect's settings name, or that of `patchline up`, if there is one."""
    from flows import prefect_session

    with contextlib.ExitStack() as stack:
        reachable = False
        with contextlib.suppress(OrchestrationError):
            stack.enter_context(prefect_session.connected())
            reachable = True
        yield reachable


def _work_of(flow_run_id: str) -> Work | None:
    """Return how far a flow run came in MLflow; none while MLflow does not answer."""
    from flows.closing.prefect_runs import Work

    try:
        if not store_exists():
            return Work(None, None)
        run = next(all_runs(f"tags.`{tracked_run.FLOW_RUN_TAG}` = '{flow_run_id}'"), None)
    except Exception as error:  # noqa: BLE001 - a store fails in many ways; all mean "later"
        logger.warning("MLflow does not answer; closing goes on later: %s", error)
        return None
    return Work(run.info.run_id, run.info.status) if run else Work(None, None)


def _clear_up(workspace: Path) -> None:
    """Remove what killed processes left half written, at most once an hour."""
    if time.monotonic() - _swept_at.get(workspace, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
        return
    _swept_at[workspace] = time.monotonic()
    for path in leftovers.remove(workspace):
        logger.info("removed %s, which a killed process left unfinished", path)
