"""The runs of a deployment: those that wait, go on, are done, or were missed.

A run counts as missed while it waits for its start after its time: the machine slept, or the
servers were down. One of them is started, not ten. The worker may take a run at any moment, so each
is looked at again before it is cancelled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled

from flows.failures import was_interrupted
from flows.prefect_client import flow_runs

_WAITING = ["Scheduled", "Late"]
_GOES_ON = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_HAD_ITS_TURN = [state for state in StateType if state != StateType.SCHEDULED]
_WORKED = [state for state in _HAD_ITS_TURN if state != StateType.CANCELLED]
_LONG_AGO = dt.datetime.fromtimestamp(0, dt.UTC)


def drop_missed(client: SyncPrefectClient, deployment_ids: Sequence[UUID]) -> None:
    """Cancel the missed runs of each deployment but for the newest.

    The newest goes too if an earlier one was started after the newest's time: that one stands for
    all of them.
    """
    now = dt.datetime.now(dt.UTC)
    missed: dict[UUID | None, list[FlowRun]] = {}
    for flow_run in _waiting(client, deployment_ids, now):
        missed.setdefault(flow_run.deployment_id, []).append(flow_run)
    for deployment_id, runs in missed.items():
        if deployment_id:
            _drop(client, deployment_id, runs)


def _drop(client: SyncPrefectClient, deployment_id: UUID, missed: Sequence[FlowRun]) -> None:
    newest = missed[-1]
    stand_in = _started_instead(client, deployment_id, newest)
    instead = stand_in or newest
    for flow_run in missed if stand_in else missed[:-1]:
        _cancel(
            client,
            flow_run,
            f"Missed: it was due at {_shown(flow_run)}, when the machine slept or nothing was free "
            f"to run it; the run that was due at {_shown(instead)} stands for it.",
        )


def interrupted(
    client: SyncPrefectClient, deployment_ids: Sequence[UUID], since: dt.datetime
) -> list[FlowRun]:
    """Return the runs that were interrupted and nothing stands for: none newer, none waits."""
    if not deployment_ids:
        return []
    ended = [StateType.CRASHED, StateType.FAILED]
    wanted = {**_of(deployment_ids), **_in_state(ended), "end_time": {"after_": since}}
    found = []
    for flow_run in flow_runs(client, wanted):
        if flow_run.state is None or not was_interrupted(flow_run.state):
            continue
        if (of := flow_run.deployment_id) and not _waiting(client, [of], dt.datetime.now(dt.UTC)):
            newest = last(client, of, _WORKED)
            found += [flow_run] if newest and newest.id == flow_run.id else []
    return found


def cancel_waiting(client: SyncPrefectClient, deployment_id: UUID, reason: str) -> None:
    """Cancel the runs of a deployment that are due and have not begun."""
    for flow_run in _waiting(client, [deployment_id], dt.datetime.now(dt.UTC)):
        _cancel(client, flow_run, reason)


def free_place(client: SyncPrefectClient, deployment: DeploymentResponse) -> None:
    """Give back the place of a run that is gone: a server that is killed forgets who holds it."""
    limit = deployment.global_concurrency_limit
    if limit and limit.active_slots and not holders(client, deployment.id):
        client.update_global_concurrency_limit(
            limit.name, GlobalConcurrencyLimitUpdate(active_slots=0)
        )


def holders(client: SyncPrefectClient, deployment_id: UUID) -> Sequence[FlowRun]:
    """Return the runs that rightly hold the deployment's place."""
    states = (_in_state(_GOES_ON), _in_state(["AwaitingRetry"], by="name"))
    own = _of([deployment_id])
    return [each for state in states for each in flow_runs(client, {**own, **state})]


def last(
    client: SyncPrefectClient, deployment_id: UUID, states: Sequence[StateType] = _HAD_ITS_TURN
) -> FlowRun | None:
    """Return the newest run whose turn has come, in one of these states."""
    wanted = FlowRunFilter.model_validate({**_of([deployment_id]), **_in_state(states)})
    found = client.read_flow_runs(
        flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1
    )
    return found[0] if found else None


def _waiting(
    client: SyncPrefectClient, deployment_ids: Sequence[UUID], due_before: dt.datetime
) -> list[FlowRun]:
    """Return the runs that a schedule made, that are due and have not begun, the oldest first."""
    wanted = {
        **_of(deployment_ids),
        **_in_state(_WAITING, by="name"),
        "next_scheduled_start_time": {"before_": due_before},
    }
    found = flow_runs(client, wanted, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [flow_run for flow_run in found if flow_run.auto_scheduled]


def _started_instead(
    client: SyncPrefectClient, deployment_id: UUID, newest: FlowRun
) -> FlowRun | None:
    """Return a scheduled run that was started when the newest missed run was already due."""
    due = _due(newest)
    own = _of([deployment_id])
    began = flow_runs(client, {**own, "start_time": {"after_": due}})
    found = [
        # Prefect writes a start into a run that was cancelled before it began.
        *(run for run in began if run.run_count),
        *flow_runs(client, {**own, **_in_state([StateType.PENDING])}),
    ]
    return next((each for each in found if each.auto_scheduled and _since(each) >= due), None)


def _of(deployment_ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the part of a filter that wants the runs of these deployments."""
    return {"deployment_id": {"any_": list(deployment_ids)}}


def _in_state(states: Sequence[str], by: Literal["type", "name"] = "type") -> dict[str, Any]:
    """Return the part of a filter that wants the runs in one of these states."""
    return {"state": {by: {"any_": list(states)}}}


def _due(flow_run: FlowRun) -> dt.datetime:
    return flow_run.expected_start_time or _LONG_AGO


def _since(flow_run: FlowRun) -> dt.datetime:
    """Return when a run began, or when its turn came if it has not begun."""
    if flow_run.start_time:
        return flow_run.start_time
    return flow_run.state.timestamp if flow_run.state else _LONG_AGO


def _cancel(client: SyncPrefectClient, flow_run: FlowRun, reason: str) -> None:
    """Cancel a run, unless the worker has taken it meanwhile."""
    if client.read_flow_run(flow_run.id).state_name in _WAITING:
        client.set_flow_run_state(flow_run.id, Cancelled(message=reason))


def _shown(flow_run: FlowRun) -> str:
    """Return when a run was due, by this machine's clock."""
    return f"{_due(flow_run).astimezone():%Y-%m-%d %H:%M:%S}"
