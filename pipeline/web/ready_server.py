"""uvicorn's server, which tells when it is ready, and ends on a signal without its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.connection import Connection

_MOST_HEAD_BYTES = 1 << 14


def uvicorn_config(app: Any, config: ServingConfig) -> uvicorn.Config:
    """Return how uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,  # a client's own claim about its address is not trusted
        server_header=False,
        timeout_keep_alive=config.idle_limit_seconds,  # type: ignore[arg-type]  # a float does
        timeout_graceful_shutdown=round(config.time_limit_seconds) + 5,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
    )


class ReadyServer(uvicorn.Server):
    """A server that calls a function once it listens.

    Args:
        config: of uvicorn.
        on_ready: the function.
    """

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell so."""
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; a second Ctrl-C stops at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
