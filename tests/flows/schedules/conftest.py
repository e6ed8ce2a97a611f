"""One Prefect server for the tests of schedules, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.lasting_server import LastingServer


@pytest.fixture(scope="module")
def prefect_server(event_server: LastingServer) -> Iterator[str]:
    """Let this process use the server that the tests of events use; return its API's address."""
    with temporary_settings({PREFECT_API_URL: event_server.url()}):
        yield event_server.url()
        APILogHandler().flush()
