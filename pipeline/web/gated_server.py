"""Serve an application on loopback, behind the gate."""

from __future__ import annotations

import socket
from typing import Literal

from patchline.pipeline.local_services import HOST
from patchline.pipeline.web.gate import Gate, Guarded

_GOODBYE_SECONDS = 3
"""How long open connections, such as those of a page in a browser, delay the shutdown."""


def serve(
    guarded: Guarded,
    secret: str,
    log_level: str = "warning",
    lifespan: Literal["auto", "on", "off"] = "auto",
    listening: socket.socket | None = None,
) -> None:
    """Serve until a signal arrives.

    Args:
        guarded: the application and its port.
        secret: what clients authenticate with.
        log_level: of the server's own log.
        lifespan: whether the application has start-up and shutdown code, as uvicorn takes it.
        listening: a socket that already listens on the port.
    """
    import uvicorn

    config = uvicorn.Config(
        Gate(guarded, secret),
        host=HOST,
        port=guarded.port,
        log_level=log_level,
        access_log=False,
        proxy_headers=False,  # a client's own claim about its address is not trusted
        lifespan=lifespan,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=None if listening is None else [listening])
