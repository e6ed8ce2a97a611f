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

    def __call__(self, command: str | Path = "", *arguments: str | Path) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error; the first argument is words."""
        self._capture.readouterr()  # is of what came before
        code = run_command_line([*str(command).split(), *map(str, arguments)])
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

    def refusal(self, *arguments: str | Path, code: int = 2) -> str:
        """Return the standard error of a command that fails: it has one sentence and no trace."""
        found, out, err = self(*arguments)
        assert (found, out) == (code, ""), err
        assert [line.startswith("Error: ") for line in err.splitlines()].count(True) == 1, err
        assert "Traceback" not in err
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
def lasting_server(
    tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path
) -> Iterator[LastingServer]:
    """Return a server for all tests, which writes events at once; no runner is known to it."""
    from tests.flows.lasting_server import LastingServer

    flush = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.2"}
    server = LastingServer(tmp_path_factory.mktemp("prefect_server"), empty_prefect, **flush)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def prefect_server(lasting_server: LastingServer) -> Iterator[str]:
    """Let this process use that server while a module's tests run; return its API's address."""
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: lasting_server.url()}):
        yield lasting_server.url()
        APILogHandler().flush()


@pytest.fixture
def shared_prefect(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in processes of their own use that server, too: a run's own takes seconds."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)


@pytest.fixture
def event_api(lasting_server: LastingServer) -> Iterator[str]:
    """Let this process use that server while a test runs; return its API's address.

    A test leaves no deployment there: commands read those of all folders, with their long schemas.
    """
    from prefect.client.orchestration import get_client
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from patchline.flows.notifications import events

    with temporary_settings({PREFECT_API_URL: lasting_server.url()}):
        yield lasting_server.url()
        events.flush()
        APILogHandler().flush()
        with get_client(sync_client=True) as opened:
            for each in opened.read_deployments():
                opened.delete_resource_owned_automations(f"prefect.deployment.{each.id}")
                opened.delete_deployment(each.id)


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """Return a client of that server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as opened:
        yield opened
