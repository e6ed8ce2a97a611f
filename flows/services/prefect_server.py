"""The Prefect server: `python -P -m flows.services.prefect_server FOLDER LIFELINE PORT`."""

from __future__ import annotations

import os

from flows.services import child, ports, prefect_database

_GOODBYE_SECONDS = 3
"""How long open connections, such as those of a page in a browser, delay the end."""


def serve(port: int, log_level: str) -> None:
    """Serve until a signal comes.

    Raises:
        OrchestrationError: if the database cannot be used.
    """
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"  # done here, under a lock
    prefect_database.upgrade()
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host=ports.HOST,
        port=port,
        log_level=log_level,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )


def _main() -> None:
    _, _, [port] = child.begin()
    serve(int(port), "warning")


if __name__ == "__main__":
    child.main(_main)
