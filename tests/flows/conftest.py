"""Commands in the test's own process, which is much faster, and a Prefect server for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client

from flows.command_line import run_command_line
from tests.flows.lasting_server import lasting_server

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
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Let this process use a Prefect server of the module's own; return its API's address."""
    with lasting_server(tmp_path_factory.mktemp("prefect_server")) as url:
        yield url


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """Return a client of that server."""
    with get_client(sync_client=True) as opened:
        yield opened
