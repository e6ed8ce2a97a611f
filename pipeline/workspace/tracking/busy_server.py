"""Wait for an MLflow server whose database has no connection left, and try again.

MLflow answers such a request with HTTP 400, "QueuePool limit of size 5 overflow 10 reached", or
with the database's own words. Its client repeats neither: a 400 means a wrong request. The server
has done nothing by then: it asks for the connection first.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

_SIGNS = (
    "QueuePool limit",
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for",
)
PATIENCE_SECONDS = 300.0
"""How long one call is repeated. The server itself has waited for half a minute each time."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 5.0
_NOT_REPEATED = frozenset({"create_model_version", "copy_model_version"})
"""Calls in which the server writes, and then asks for another connection."""
Answer = TypeVar("Answer")


def is_busy(error: Exception) -> bool:
    """Return whether an MLflow server had no free connection to its database."""
    return any(sign in str(error) for sign in _SIGNS)


def repeat_while_busy(
    call: Callable[[], Answer],
    already_done: Callable[[], Answer | None] = lambda: None,
) -> Answer:
    """Return what a call returns; repeat it while the server is busy.

    Args:
        call: a call of MLflow's client.
        already_done: a function that returns the answer if the busy server has completed the call
            all the same.

    Raises:
        MlflowException: if it fails otherwise, or is still busy after `PATIENCE_SECONDS`.
    """
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            logger.info("the MLflow server is busy; trying again: %s", error)
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - it spreads the clients
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        answer = already_done()
        if answer is not None:
            return answer


@functools.cache
def client_class(
    called: Callable[[Callable[[], Any]], Any], directly: frozenset[str] = frozenset()
) -> type[MlflowClient]:
    """Return a class of MLflow's client whose calls pass through a function.

    Args:
        called: the function that is given each call, and returns what the call returns.
        directly: names of methods whose calls do not pass through it.
    """
    from mlflow import MlflowClient

    class WrappedClient(MlflowClient):
        """`MlflowClient`, whose methods look as before."""

        def __getattribute__(self, name: str) -> Any:
            attribute = super().__getattribute__(name)
            if name.startswith("_") or name in directly or not callable(attribute):
                return attribute

            @functools.wraps(attribute)
            def wrapped(*arguments: Any, **named: Any) -> Any:
                return called(lambda: attribute(*arguments, **named))

            return wrapped

    return WrappedClient


def patient_client() -> type[MlflowClient]:
    """Return the class of MLflow's client whose calls wait for a busy server."""
    return client_class(repeat_while_busy, _NOT_REPEATED)
