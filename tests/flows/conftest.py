"""Commands in the test's own process, which is much faster, and Prefect servers to share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client

from patchline.flows.command_line import run_command_line
from tests.flows.lasting_server import LastingServer, lasting_server

Command = Callable[..., tuple[int, str, str]]
"""Arguments in; exit code, standard output and standard error out."""


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `patchline` with the given arguments."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = run_command_line(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path) -> Iterator[str]:
    """Let this process use a Prefect server of the module's own; return its API's address."""
    with lasting_server(tmp_path_factory.mktemp("prefect_server"), empty_prefect) as url:
        yield url


@pytest.fixture(scope="session")
def event_server(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path
) -> Iterator[LastingServer]:
    """Return a server that writes events at once, for all tests that need them.

    Automations and deployments of other tests stay away from it.
    """
    flush = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.2"}
    server = LastingServer(tmp_path_factory.mktemp("event_server"), empty_prefect, **flush)
    yield server
    server.stop()


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """Return a client of that server."""
    with get_client(sync_client=True) as opened:
        yield opened
