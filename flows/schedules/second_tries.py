"""A flow run that was interrupted goes on: after a few seconds, later after each failure.

The same flow run begins again, so that it keeps its page, its answers and its MLflow run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Scheduled

MOST_FAILURES = 4
"""How often a flow run may fail before it is left to a person."""
LOOK_BACK = dt.timedelta(days=7)
"""What ended longer ago stays as it is."""
_FIRST_PAUSE_SECONDS, _LONGER = 5.0, 6.0


def go_on(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    worth: Callable[[State[Any]], bool],
    now: dt.datetime | None = None,
) -> bool:
    """Start a flow run again that has ended in a state worth it, when its time has come.

    Args:
        client: of Prefect.
        flow_run_id: the flow run.
        worth: tells the states that are worth another try.
        now: the time, if not this machine's.

    Returns:
        Whether nothing is left to do: it ended otherwise, too often, or long ago.
    """
    state = client.read_flow_run(flow_run_id).state
    if state is None or not state.is_final():
        return False
    age = (now or dt.datetime.now(dt.UTC)) - state.timestamp
    failed = failures(client, flow_run_id, worth)
    if not worth(state) or failed >= MOST_FAILURES or age > LOOK_BACK:
        return True
    if age.total_seconds() >= _FIRST_PAUSE_SECONDS * _LONGER ** (failed - 1):
        words = f"It goes on after failure {failed} ({state.name}): {state.message}"
        client.set_flow_run_state(flow_run_id, Scheduled(name="Resuming", message=words))
    return False


def failures(
    client: SyncPrefectClient, flow_run_id: UUID, worth: Callable[[State[Any]], bool]
) -> int:
    """Return how often a flow run ended in a state that is worth another try."""
    return sum(worth(state) for state in client.read_flow_run_states(flow_run_id))
