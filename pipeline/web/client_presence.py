"""Whether the client of a request is still there: for one that has gone, nothing is computed.

The connection notes in the scope of a request that its client has gone; whoever computes an answer
asks here for a notification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import ClientDisconnect

Scope = MutableMapping[str, Any]

_GONE, _ON_GONE = "patchline.client_gone", "patchline.on_client_gone"


def note_gone(scope: Any) -> None:
    """Note that the client of a request has gone, and tell who waits for that."""
    scope[_GONE] = True
    if (on_gone := scope.get(_ON_GONE)) is not None:
        on_gone()


@contextmanager
def while_present(scope: Scope, on_gone: Callable[[], None]) -> Iterator[None]:
    """Have a function called if the client goes while the block runs.

    Args:
        scope: of the request.
        on_gone: what is called.

    Raises:
        ClientDisconnect: if it has gone already.
    """
    if scope.get(_GONE):
        raise ClientDisconnect
    scope[_ON_GONE] = on_gone
    try:
        yield
    finally:
        del scope[_ON_GONE]
