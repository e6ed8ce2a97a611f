"""Answer only as many requests at a time as the connections of a database suffice for.

A server that takes more waits for connections that its own other requests hold: MLflow opens a
second one while it holds the first, so that with a pool of 15 connections 32 writers stop each
other until SQLAlchemy gives up ("QueuePool limit"). Requests that wait here hold nothing.
"""

from __future__ import annotations

import asyncio

from patchline.pipeline.web.gate import App, Receive, Send
from patchline.pipeline.web.request_headers import Scope

_WITHOUT_DATABASE = ("/health", "/version")
_TRANSFERS = "artifact"
"""In the paths of requests that transfer files, which may take long."""
_MOST_TRANSFERS = 32
_NESTED = 2
"""Connections that one request may hold at the same time."""


class Limited:
    """An ASGI application that passes on a limited number of requests at a time."""

    def __init__(self, app: App, connections: int) -> None:
        self._app = app
        self._requests = asyncio.Semaphore(max(1, connections // _NESTED))
        self._transfers = asyncio.Semaphore(_MOST_TRANSFERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request once it is its turn."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path.endswith(_WITHOUT_DATABASE):
            await self._app(scope, receive, send)
            return
        async with self._transfers if _TRANSFERS in path else self._requests:
            await self._app(scope, receive, send)
