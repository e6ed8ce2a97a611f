"""A flow run whose process was killed goes on: after a few seconds, later after each failure.

The same flow run begins again, so that it keeps its page, its answers and its MLflow run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.states import Scheduled

MOST_FAILURES = 4
"""How often a flow run may fail before it is left to a person."""
LOOK_BACK = dt.timedelta(days=7)
"""What ended longer ago stays as it is."""
_FIRST_PAUSE_SECONDS, _LONGER = 5.0, 6.0


def go_on(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    kinds: Collection[StateType],
    now: dt.datetime | None = None,
) -> bool:
    """Start a flow run again that has ended in one of these kinds of state, when its time has come.

    Args:
        client: of Prefect.
        flow_run_id: the flow run.
        kinds: the states that are worth another try.
        now: the time, if not this machine's.

    Returns:
        Whether nothing is left to do: it ended otherwise, too often, or long ago.
    """
    state = client.read_flow_run(flow_run_id).state
    if state is None or not state.is_final():
        return False
    age = (now or dt.datetime.now(dt.UTC)) - state.timestamp
    failed = failures(client, flow_run_id, kinds)
    if state.type not in kinds or failed >= MOST_FAILURES or age > LOOK_BACK:
        return True
    if age.total_seconds() >= _FIRST_PAUSE_SECONDS * _LONGER ** (failed - 1):
        words = f"It goes on after failure {failed} ({state.name}): {state.message}"
        client.set_flow_run_state(flow_run_id, Scheduled(name="Resuming", message=words))
    return False


def failures(client: SyncPrefectClient, flow_run_id: UUID, kinds: Collection[StateType]) -> int:
    """Return how often a flow run ended in one of these kinds of state."""
    return sum(state.type in kinds for state in client.read_flow_run_states(flow_run_id))
