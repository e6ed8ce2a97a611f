"""Serve the page until a signal arrives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.ready_server import ReadyServer, uvicorn_config
from patchline.plugins.tools.label.server.application import application
from patchline.plugins.tools.label.session import Session


def serve(
    session: Session,
    config: ServingConfig,
    folder: str,
    listening: socket.socket,
    on_ready: Callable[[], None],
) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        session: of all people.
        config: of the server.
        folder: name of what is labelled.
        listening: socket of the server.
        on_ready: called once requests are answered.
    """
    app = application(session, config, listening.getsockname()[1], folder)
    server = ReadyServer(uvicorn_config(app, config), on_ready)
    asyncio.run(server.serve(sockets=[listening]))
