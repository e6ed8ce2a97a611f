"""Serve an application on loopback, behind the gate."""

from __future__ import annotations

from typing import Literal

from pipeline.local_services import HOST
from pipeline.server_access.gate import Gate, Guarded

_GOODBYE_SECONDS = 3
"""How long open connections, such as those of a page in a browser, delay the shutdown."""


def serve(
    guarded: Guarded,
    secret: str,
    log_level: str = "warning",
    lifespan: Literal["auto", "on", "off"] = "auto",
) -> None:
    """Serve until a signal arrives.

    Args:
        guarded: the application and its port.
        secret: what clients authenticate with.
        log_level: of the server's own log.
        lifespan: whether the application has start-up and shutdown code, as uvicorn takes it.
    """
    import uvicorn

    uvicorn.run(
        Gate(guarded, secret),
        host=HOST,
        port=guarded.port,
        log_level=log_level,
        access_log=False,
        proxy_headers=False,  # a client's own claim about its address is not trusted
        lifespan=lifespan,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )
