"""One Prefect server for the tests of schedules, each in a folder of its own."""

from __future__ import annotations

import pytest


@pytest.fixture
def prefect_server(event_api: str) -> str:
    """Let this process use the server that the tests of events use; return its API's address."""
    return event_api
