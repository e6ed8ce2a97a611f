"""A Prefect server for the tests of one module, which this process's settings name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.temporary_server import TemporaryServer
from tests.conftest import PREFECT_DATABASE


@contextmanager
def lasting_server(folder: Path) -> Iterator[str]:
    """Start a server with a database of its own in a folder; yield its API's address.

    It has an API and no services: nothing is scheduled unless a test asks for it.
    """
    before = os.environ[PREFECT_DATABASE]
    os.environ[PREFECT_DATABASE] = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    started = TemporaryServer()
    os.environ[PREFECT_DATABASE] = before
    try:
        started.wait()
        with temporary_settings({PREFECT_API_URL: started.url}):
            yield started.url
            APILogHandler().flush()  # before the server goes
    finally:
        started.stop()
