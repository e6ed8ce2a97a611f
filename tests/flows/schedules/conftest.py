"""One Prefect server for the tests of schedules, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.lasting_server import LastingServer


@pytest.fixture(scope="session")
def schedule_server(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path
) -> Iterator[LastingServer]:
    """Return a server that knows the schedules of all these folders."""
    server = LastingServer(tmp_path_factory.mktemp("schedule_server"), empty_prefect)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def prefect_server(schedule_server: LastingServer) -> Iterator[str]:
    """Let this process use that server; return its API's address."""
    with temporary_settings({PREFECT_API_URL: schedule_server.url()}):
        yield schedule_server.url()
        APILogHandler().flush()
