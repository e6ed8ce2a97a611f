"""Retry an interrupted flow run after a few seconds, and later after each further failure.

The same flow run starts again, so it keeps its page, its answers and its MLflow run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Scheduled

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
