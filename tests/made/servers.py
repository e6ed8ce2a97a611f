"""Commands in the test's own process, which is much faster, and Prefect servers to share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patchline.flows.command_line import run_command_line

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from tests.flows.lasting_server import LastingServer


class Command:
    """Runs `patchline` with arguments in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        code = run_command_line([str(argument) for argument in arguments])
        printed = self._capture.readouterr()
        return code, printed.out, printed.err

    def out(self, *arguments: str | Path) -> str:
        """Return the standard output of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def json(self, *arguments: str | Path) -> Any:
        """Return what a command that succeeds answers with `--json`."""
        return json.loads(self.out(*arguments, "--json"))

    def refusal(self, *arguments: str | Path) -> str:
        """Return the standard error of a command that ends with exit code 2."""
        code, _, err = self(*arguments)
        assert code == 2, err
        return err


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `patchline` with the given arguments."""
    return Command(capsys)


@pytest.fixture
def command(store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command in the folder of the module's fixture `store`."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    return run_here


@pytest.fixture(scope="session")
def plain_server(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path
) -> Iterator[LastingServer]:
    """Return a server for all tests that need no more than one; no runner is known to it."""
    from tests.flows.lasting_server import LastingServer

    server = LastingServer(tmp_path_factory.mktemp("prefect_server"), empty_prefect)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def prefect_server(plain_server: LastingServer) -> Iterator[str]:
    """Let this process use that server while a module's tests run; return its API's address."""
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: plain_server.url()}):
        yield plain_server.url()
        APILogHandler().flush()


@pytest.fixture
def shared_prefect(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in processes of their own use that server, too: a run's own takes seconds."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)


@pytest.fixture(scope="session")
def event_server(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path
) -> Iterator[LastingServer]:
    """Return a server that writes events at once, for all tests that need them.

    Automations and deployments of other tests stay away from it.
    """
    from tests.flows.lasting_server import LastingServer

    flush = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.2"}
    server = LastingServer(tmp_path_factory.mktemp("event_server"), empty_prefect, **flush)
    yield server
    server.stop()


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """Return a client of that server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as opened:
        yield opened
