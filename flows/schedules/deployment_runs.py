"""The flow runs of deployments: found, cancelled, and retried once they were interrupted.

A worker may start a run at any moment, so each is read again before it is cancelled.

A retried flow run is the same one, so it keeps its page, its answers and its MLflow run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled, Scheduled

from patchline.flows.prefect_api.prefect_client import flow_runs

_WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot")
_ACTIVE = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_STARTED = set(StateType) - {StateType.SCHEDULED}
_POSTPONED = dt.timedelta(minutes=1)
"""A run that is due later than this was postponed by a person."""


def due(client: SyncPrefectClient, deployment_ids: Sequence[UUID]) -> list[FlowRun]:
    """Return the runs that a schedule created and that are due but not started, oldest first."""
    filters = {
        **of_deployments(deployment_ids),
        "state": {"name": {"any_": ["Scheduled", "Late"]}},
        "next_scheduled_start_time": {"before_": dt.datetime.now(dt.UTC)},
    }
    runs = flow_runs(client, filters, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [flow_run for flow_run in runs if flow_run.auto_scheduled]


def active(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """Return the runs that rightly occupy the deployment's concurrency slot."""
    own = of_deployments([deployment_id])
    states: tuple[dict[str, Any], ...] = (
        {"type": {"any_": _ACTIVE}},
        {"name": {"any_": ["AwaitingRetry"]}},
    )
    return [each for state in states for each in flow_runs(client, {**own, "state": state})]


def unfinished(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """Return the runs that are active or wait for their turn, without postponed ones."""
    state = {"type": {"any_": [StateType.SCHEDULED, *_ACTIVE]}}
    soon = dt.datetime.now(dt.UTC) + _POSTPONED

    def is_postponed(flow_run: FlowRun) -> bool:
        start = flow_run.next_scheduled_start_time
        return flow_run.state_name == "Scheduled" and start is not None and start > soon

    runs = flow_runs(client, {**of_deployments([deployment_id]), "state": state})
    return [flow_run for flow_run in runs if not is_postponed(flow_run)]


def newest(
    client: SyncPrefectClient, deployment_id: UUID, without: Collection[StateType] = ()
) -> FlowRun | None:
    """Return the newest run that has started or ended, in none of the states `without`."""
    state = {"type": {"any_": sorted(_STARTED.difference(without))}}
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {**of_deployments([deployment_id]), "state": state}
        ),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=1,
    )
    return runs[0] if runs else None


def cancel(client: SyncPrefectClient, flow_run: FlowRun, reason: str) -> None:
    """Cancel a run, unless a worker has started it in the meantime."""
    if client.read_flow_run(flow_run.id).state_name in _WAITING:
        client.set_flow_run_state(flow_run.id, Cancelled(message=reason))


def of_deployments(deployment_ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the part of a filter that selects the runs of these deployments."""
    return {"deployment_id": {"any_": list(deployment_ids)}}


MAX_FAILURES = 4
"""After this many failures a flow run is not retried."""
LOOK_BACK = dt.timedelta(days=7)
"""Flow runs that ended earlier are not retried."""
_FIRST_PAUSE_SECONDS, _PAUSE_FACTOR = 5.0, 6.0

IsRetryable = Callable[[State[Any]], bool]
"""Whether a run that ended in this state should be retried."""


def retry_when_due(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    is_retryable: IsRetryable,
    now: dt.datetime | None = None,
) -> bool:
    """Restart an ended flow run once its pause is over.

    Args:
        client: of the Prefect server.
        flow_run_id: the flow run.
        is_retryable: tells which final states are retried.
        now: the current time, if not this machine's.

    Returns:
        Whether nothing is left to do: it ended otherwise, too often or too long ago.
    """
    state = client.read_flow_run(flow_run_id).state
    if state is None or not state.is_final():
        return False
    age = (now or dt.datetime.now(dt.UTC)) - state.timestamp
    failed = count_failures(client, flow_run_id, is_retryable)
    if not is_retryable(state) or failed >= MAX_FAILURES or age > LOOK_BACK:
        return True
    if age.total_seconds() >= _FIRST_PAUSE_SECONDS * _PAUSE_FACTOR ** (failed - 1):
        message = f"Resuming after failure {failed} ({state.name}): {state.message}"
        client.set_flow_run_state(flow_run_id, Scheduled(name="Resuming", message=message))
    return False


def count_failures(client: SyncPrefectClient, flow_run_id: UUID, is_retryable: IsRetryable) -> int:
    """Return how often a flow run ended in a retryable state."""
    return sum(map(is_retryable, client.read_flow_run_states(flow_run_id)))
