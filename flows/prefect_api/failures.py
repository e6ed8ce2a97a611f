"""What Prefect does after a failure: retry a task, or show the reason in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from prefect.states import Failed

from patchline.pipeline.errors import ServerAwayError, TrackingError
from patchline.pipeline.workers.host.system_errors import system_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State


SERVER_UNAVAILABLE = "Server unavailable"
"""Name of the state of a flow that failed because MLflow did not answer."""


class _Retrying(TypedDict):
    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: Callable[[Any, Any, Any], bool]


def _worth_it(_task: object, _run: object, state: Any) -> bool:
    try:
        state.result()
    except (OSError, TrackingError):
        return True
    except Exception:  # noqa: BLE001 - other errors are not transient
        return False
    return False


RETRYING: _Retrying = {
    "retries": 3,
    "retry_delay_seconds": [1, 3, 10],  # a restarting server needs some seconds
    "retry_condition_fn": _worth_it,
}
"""Arguments for `@task(name=..., **RETRYING)`: retry failures of a disk or a server."""


def build_failed_state(error: Exception) -> State[Any]:
    """Return the final state of a flow that fails with an error for the user.

    Prefect raises the error in the caller of the flow. Raised by the flow itself, it would be shown
    as a traceback. If a server did not answer, the state's name says so; the run can be resumed.

    Raises:
        Exception: the error itself, if neither Patchline nor the machine explains it.
    """
    known = system_error(error)
    if known is None:
        raise error
    if isinstance(known, ServerAwayError):
        return Failed(name=SERVER_UNAVAILABLE, message=str(known), data=known)
    return Failed(message=str(known), data=known)


def was_interrupted(state: State[Any]) -> bool:
    """Return whether a run can be resumed: its process was killed, or a server did not answer."""
    return state.is_crashed() or (state.is_failed() and state.name == SERVER_UNAVAILABLE)
