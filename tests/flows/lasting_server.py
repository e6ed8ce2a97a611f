"""A Prefect server for the tests of one module, which this process's settings name."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.temporary_server import TemporaryServer
from pipeline.local_login import USER
from tests.conftest import PREFECT_DATABASE, SERVER_SECRET

_PAIR = base64.b64encode(f"{USER}:{SERVER_SECRET}".encode()).decode()
PROOF = {"Authorization": f"Basic {_PAIR}"}
"""The header by which a program without Prefect's client logs in."""


@contextmanager
def lasting_server(folder: Path) -> Iterator[str]:
    """Start a server with a database of its own in a folder; yield its API's address.

    It has an API and no services: nothing is scheduled unless a test asks for it.
    """
    before = os.environ[PREFECT_DATABASE]
    os.environ[PREFECT_DATABASE] = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    started = TemporaryServer(SERVER_SECRET)
    os.environ[PREFECT_DATABASE] = before
    try:
        started.wait()
        with temporary_settings({PREFECT_API_URL: started.url}):
            yield started.url
            APILogHandler().flush()  # before the server goes
    finally:
        started.stop()
