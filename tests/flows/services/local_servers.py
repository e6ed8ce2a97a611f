"""Real servers of `patchline up` for tests, and what tests do with them."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

from patchline.flows.services import service_processes
from patchline.pipeline import local_services
from tests.conftest import PATCHLINE, PREFECT_DATABASE, Finished, patchline_here
from tests.free_ports import free_port
from tests.patience import patient, until

_NAP = """
import sys, time
from pathlib import Path
from patchline.pipeline.workspace.run_memory import live_runs
with live_runs.alive(Path(".patchline"), "nap", "a nap"):
    print("began", flush=True)
    time.sleep(300)
"""


class Servers:
    """What `patchline up` runs in a folder."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.env = env or own_database()
        self.ports = (free_port(), free_port())

    def run(self, *arguments: str) -> Finished:
        """Run a command in this process, with their variables and no others."""
        own = {PREFECT_SERVER_DATABASE_CONNECTION_URL}  # which this process began with
        with pytest.MonkeyPatch.context() as patch, temporary_settings(restore_defaults=own):
            for name in os.environ.keys() - self.env.keys():
                patch.delenv(name)
            return patchline_here(*arguments, cwd=self.folder, env=self.env)

    def up(self, *flags: str) -> Finished:
        """Start them, or find them."""
        return self.run("up", *self._flags, *flags)

    def begin_up(self) -> subprocess.Popen[str]:
        """Begin to start them in a process of its own."""
        return self.begin("up", *self._flags)

    @property
    def _flags(self) -> tuple[str, ...]:
        prefect, mlflow = map(str, self.ports)
        return ("--prefect-port", prefect, "--mlflow-port", mlflow, "--json")

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process of its own, which Ctrl-C reaches."""
        return subprocess.Popen(
            [str(PATCHLINE), *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads yet
        )

    def down(self, *flags: str) -> Finished:
        """Stop them."""
        return self.run("down", "--json", *flags)

    @property
    def state(self) -> local_services.Services:
        """Where they are."""
        services = local_services.find_running(self.folder)
        assert services is not None
        return services

    def process(self, module: str) -> psutil.Process:
        """The process of one of them."""
        [found] = service_processes.members(self.folder, module)
        return found

    def log(self, name: str) -> str:
        """What one of them has logged."""
        file = local_services.logs_folder(self.folder) / f"{name}.log"
        return file.read_text(encoding="utf-8")

    def assert_gone(self) -> None:
        """No process, no lock and no state is left."""
        until(lambda: not service_processes.members(self.folder), "processes are left")
        assert not local_services.is_supervised(self.folder)
        assert local_services.find_running(self.folder) is None
        assert not local_services.state_file(self.folder).exists()


@contextmanager
def serving(folder: Path, *flags: str, **variables: str) -> Iterator[Servers]:
    """Run the servers of a folder while the block runs."""
    servers = Servers(folder, {**own_database(), **variables})
    try:
        done = servers.up(*flags)
        assert done.code == 0, done.err
        yield servers
    finally:
        servers.down("--now")


def recorded_services(folder: Path) -> local_services.Services:
    """Write the state of servers that do not run, with the number of this process; return it."""
    services = local_services.Services(
        folder=folder,
        pid=os.getpid(),
        prefect_url="http://127.0.0.1:1",
        prefect_api_url="http://127.0.0.1:1/api",
        mlflow_url="http://127.0.0.1:2",
        own=("prefect", "mlflow"),
        started_at="2026-01-01T00:00:00+00:00",
        versions={},
    )
    state = local_services.state_file(folder)
    state.parent.mkdir(parents=True)
    state.write_text(services.model_dump_json(), encoding="utf-8")
    return services


def own_database() -> dict[str, str]:
    """Return an environment in which Prefect's database is that of the folder."""
    return {name: value for name, value in os.environ.items() if name != PREFECT_DATABASE}


def ended(process: subprocess.Popen[str]) -> Finished:
    """Wait for a command and return how it ended."""
    out, err = process.communicate(timeout=patient(600))
    return Finished(process.returncode, out, err)


def proof(folder: Path) -> dict[str, str]:
    """Return the header by which a program logs in to the servers of a folder."""
    value = local_services.secret(folder)
    pair = base64.b64encode(f"{local_services.USER}:{value}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def page(url: str, folder: Path) -> str:
    """Return a page of the servers of a folder."""
    request = urllib.request.Request(url, headers=proof(folder))
    with urllib.request.urlopen(request, timeout=patient(60)) as response:
        return str(response.read().decode())


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Take a port while the block runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


@contextmanager
def nap(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that records an active run, as `patchline run` does."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _NAP], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "began\n"
        try:
            yield process
        finally:
            process.kill()
