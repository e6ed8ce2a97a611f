"""What Prefect does when something fails: tries a task again, or shows why in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from prefect.states import Failed

from pipeline.errors import PipelineError, ServerAwayError, TrackingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State


SERVER_AWAY = "Server away"
"""The name of the state of a flow that failed because MLflow did not answer."""


class _Retrying(TypedDict):
    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: Callable[[Any, Any, Any], bool]


def _worth_it(_task: object, _run: object, state: Any) -> bool:
    try:
        state.result()
    except (OSError, TrackingError):
        return True
    except Exception:  # noqa: BLE001 - anything else is not ours to repeat
        return False
    return False


RETRYING: _Retrying = {
    "retries": 3,
    "retry_delay_seconds": [1, 3, 10],  # a server that is started again needs some seconds
    "retry_condition_fn": _worth_it,
}
"""What `@task` is given, `@task(name=..., **RETRYING)`: a disk or a server failed, not the user."""


def failed(error: PipelineError) -> State[Any]:
    """Return the state of a flow that ends with an error of the user's, in the error's words.

    Prefect raises the error for whoever called the flow. Raised by the flow itself, it would be
    shown as a traceback. If a server was away, the state's name says so, and the run may go on.
    """
    if isinstance(error, ServerAwayError):
        return Failed(name=SERVER_AWAY, message=str(error), data=error)
    return Failed(message=str(error), data=error)


def was_interrupted(state: State[Any]) -> bool:
    """Return whether nothing was wrong with a run: its process was killed, or a server was away."""
    return state.is_crashed() or (state.is_failed() and state.name == SERVER_AWAY)
