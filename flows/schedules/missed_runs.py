"""Clean up after downtime: runs that were missed, interrupted or still hold a concurrency slot.

A run is missed if it was due while the machine slept or the servers were down. Of all missed runs
of a deployment, one is started.
"""

from __future__ import annotations

import datetime as dt
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse

from patchline.flows.prefect_api.failures import was_interrupted
from patchline.flows.prefect_api.prefect_client import asking, flow_runs
from patchline.flows.schedules import deployments

_RESUMABLE = dt.timedelta(days=1)
"""An interrupted run is resumed this long after its end; later, the next run replaces it."""
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


def drop_missed() -> None:
    """Cancel all but one of the missed runs of each deployment in this folder.

    Also release the concurrency slots of runs that ended without doing so, because such a slot
    would keep every later run from starting.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    all_deployments = deployments.deployments()  # before the runs, so that every slot's run is seen
    with asking() as client:
        missed: dict[UUID, list[FlowRun]] = {}
        scheduled = [each.id for each in all_deployments if each.schedules]
        for flow_run in deployments.due(client, scheduled):
            if flow_run.deployment_id:
                missed.setdefault(flow_run.deployment_id, []).append(flow_run)
        for deployment_id, runs in missed.items():
            _drop(client, deployment_id, runs)
        for each in all_deployments:
            _release_slot(client, each)


def continue_interrupted() -> None:
    """Resume interrupted runs of schedules, unless a later run has started or is due.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    running = deployments.deployments("schedule")
    ids = [each.id for each in running if not deployments.is_paused(each)]
    if not ids:
        return
    filters = {
        **deployments.of_deployments(ids),
        "state": {"type": {"any_": [StateType.CRASHED, StateType.FAILED]}},
        "end_time": {"after_": dt.datetime.now(dt.UTC) - _RESUMABLE},
    }
    with asking() as client:
        for flow_run in flow_runs(client, filters):
            if flow_run.state and was_interrupted(flow_run.state) and _is_last(client, flow_run):
                deployments.retry_when_due(client, flow_run.id, was_interrupted)


def _drop(client: SyncPrefectClient, deployment_id: UUID, missed: list[FlowRun]) -> None:
    """Cancel all but the newest, and the newest too if a run was started after it was due."""
    newest = missed[-1]
    started = _started_since(client, deployment_id, newest)
    replacement = started or newest
    for flow_run in missed if started else missed[:-1]:
        deployments.cancel(
            client,
            flow_run,
            f"Missed: due at {_shown(flow_run)}, when the machine was asleep or no worker was "
            f"free; replaced by the run due at {_shown(replacement)}.",
        )


def _started_since(
    client: SyncPrefectClient, deployment_id: UUID, missed: FlowRun
) -> FlowRun | None:
    """Return a scheduled run that was started when the missed run was already due."""
    due = _due(missed)
    own = deployments.of_deployments([deployment_id])
    began = flow_runs(client, {**own, "start_time": {"after_": due}})
    later_runs = [
        # Prefect sets the start time of a run that was cancelled before it began, too.
        *(run for run in began if run.run_count),
        *flow_runs(client, {**own, "state": {"type": {"any_": [StateType.PENDING]}}}),
    ]
    return next((each for each in later_runs if each.auto_scheduled and _since(each) >= due), None)


def _release_slot(client: SyncPrefectClient, deployment: DeploymentResponse) -> None:
    """Release the slot of a run that is gone: a killed server forgets which run holds it."""
    limit = deployment.global_concurrency_limit
    if limit and limit.active_slots and not deployments.active(client, deployment.id):
        client.update_global_concurrency_limit(
            limit.name, GlobalConcurrencyLimitUpdate(active_slots=0)
        )


def _is_last(client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """Return whether no later run of the deployment has started or is due."""
    deployment_id = flow_run.deployment_id
    if deployment_id is None or deployments.due(client, [deployment_id]):
        return False
    newest = deployments.newest(client, deployment_id, without=[StateType.CANCELLED])
    return newest is not None and newest.id == flow_run.id


def _due(flow_run: FlowRun) -> dt.datetime:
    return flow_run.expected_start_time or _EPOCH


def _since(flow_run: FlowRun) -> dt.datetime:
    """Return when a run started, or when it entered its state if it has not started."""
    if flow_run.start_time:
        return flow_run.start_time
    return flow_run.state.timestamp if flow_run.state else _EPOCH


def _shown(flow_run: FlowRun) -> str:
    """Return when a run was due, in this machine's time zone."""
    return f"{_due(flow_run).astimezone():%Y-%m-%d %H:%M:%S}"
