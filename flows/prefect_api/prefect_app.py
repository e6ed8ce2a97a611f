"""Prefect's server as an application: behind the gate, with its garbage out of the event loop."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import threading
import time

from patchline.flows.prefect_api import postgres, prefect_database
from patchline.pipeline.web import gated_server
from patchline.pipeline.web.gate import App, Guarded
from patchline.pipeline.web.limited import Limited

_COLLECT_EVERY_SECONDS = 1.0
_FULL_COLLECTION_EVERY = 30
"""Every so many turns, objects that have survived a turn are looked through, too."""


def collect_in_own_thread(pause_seconds: float = _COLLECT_EVERY_SECONDS) -> None:
    """Stop the automatic collection in this process, and collect regularly in a daemon thread.

    By default, whichever thread allocates next collects, here mostly that of the event loop. Among
    the garbage are cursors of SQLite, and to finalise one takes the lock of its connection. If
    another thread holds that while it waits for the database, and the transaction that it waits for
    needs the event loop, the server stands still until SQLite gives up: for a minute, Prefect's
    `busy_timeout`. What exists already, such as modules, is taken to stay.
    """
    gc.disable()
    gc.freeze()
    threading.Thread(
        target=_collect_for_ever, args=(pause_seconds,), name="garbage", daemon=True
    ).start()


def _collect_for_ever(pause_seconds: float) -> None:
    for turn in itertools.count(1):
        time.sleep(pause_seconds)
        gc.collect(2 if turn % _FULL_COLLECTION_EVERY == 0 else 1)


def serve(
    port: int,
    secret: str,
    log_level: str,
    home: str | None = "/",
    listening: socket.socket | None = None,
) -> None:
    """Serve until a signal arrives.

    Args:
        port: to listen on.
        secret: what clients authenticate with.
        log_level: of the server's own log.
        home: the first page; none without a UI.
        listening: a socket that already listens on the port.

    Raises:
        OrchestrationError: if the database cannot be used.
    """
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"  # done here, under a lock
    prefect_database.upgrade()
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

    # A password in Prefect's own settings is for other servers; the UI would ask for it as well.
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):
        app: App = create_app()
        if connections := _connections():
            app = Limited(app, connections)
        guarded = Guarded(app, port, health="/api/health", home=home)
        collect_in_own_thread()
        gated_server.serve(guarded, secret, log_level, lifespan="on", listening=listening)


def _connections() -> int:
    """Return how many connections the pool may open, if the database is a team's."""
    from prefect.settings import get_current_settings

    of = get_current_settings().server.database
    address = of.connection_url.get_secret_value() if of.connection_url else ""
    if not postgres.is_postgres(address):
        return 0
    return of.sqlalchemy.pool_size + max(0, of.sqlalchemy.max_overflow)
