"""The Prefect server: `python -P -m flows.services.prefect_server FOLDER LIFELINE PORT`."""

from __future__ import annotations

import os

from flows.services import child, ports, prefect_database
from flows.services.gate import Gate, Guarded
from pipeline.local_login import ensure_secret

_GOODBYE_SECONDS = 3
"""How long open connections, such as those of a page in a browser, delay the end."""


def serve(port: int, secret: str, log_level: str, home: str | None = "/") -> None:
    """Serve until a signal comes.

    Args:
        port: where to listen.
        secret: what a client has to know.
        log_level: of the server's own log.
        home: the first page; none if there are no pages.

    Raises:
        OrchestrationError: if the database cannot be used.
    """
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"  # done here, under a lock
    prefect_database.upgrade()
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

    # Prefect's own password is for other servers; here its page would ask for it a second time.
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):
        uvicorn.run(
            Gate(Guarded(create_app(), port, health="/api/health", home=home), secret),
            host=ports.HOST,
            port=port,
            log_level=log_level,
            access_log=False,
            proxy_headers=False,  # what a client says about its address is not believed
            lifespan="on",
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )


def _main() -> None:
    folder, _, [port] = child.begin()
    serve(int(port), ensure_secret(folder), "warning")


if __name__ == "__main__":
    child.main(_main)
