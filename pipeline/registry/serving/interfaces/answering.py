"""What all interfaces share: take the body of a request, and write JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from patchline.pipeline.registry.serving.interfaces.given_images import FORM, JSON, TENSORS
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.web.json_bodies import media_type
from patchline.pipeline.web.request_body import BodyMemory, BodyShare, read_body

_FEW_BYTES = 1 << 15
"""A larger body is parsed in a thread, so that other requests are read meanwhile."""
MEMORY_FACTOR = 4
"""The bodies of all requests may hold as many times the largest body."""
Parsed = TypeVar("Parsed")


class Server:
    """What the interfaces answer with."""

    def __init__(self, host: ModelHost) -> None:
        self.host = host
        self.memory = BodyMemory(MEMORY_FACTOR * host.config.max_request_bytes)
        self._parsing = asyncio.Lock()

    async def parsed(
        self,
        request: Request,
        share: BodyShare,
        parse: Callable[[bytes], Parsed],
        kind: str | None = None,
    ) -> Parsed:
        """Read the body of a request, and return what it holds.

        One is parsed at a time: while it is, it takes several times its size.

        Args:
            request: whose body nobody has read yet.
            share: of the memory.
            parse: returns what a body holds.
            kind: media type that the body is read as; None for that of the request.

        Raises:
            Refusal: if there is no room for it, or something is wrong with it.
        """
        self.host.check_room()
        kind = kind or media_type(request.headers.get("content-type", ""))
        config = self.host.config
        most = config.max_json_bytes if kind == JSON else config.max_request_bytes
        body = await read_body(request, most, share)
        if len(body) <= _FEW_BYTES or kind not in (JSON, FORM, TENSORS):  # others are one image
            return parse(body)
        async with self._parsing:
            return await asyncio.to_thread(parse, body)


def server_of(request: Request) -> Server:
    """Return the server that a request was sent to."""
    server: Server = request.app.state.server
    return server
