"""What the supervisor starts: the command, the environment and the sign of life of each program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flows.services import child, family, ports
from flows.services.managed_process import Program
from flows.services.plan import Plan
from pipeline.local_login import mlflow_variables, prefect_variables
from pipeline.local_services import answers, logs_folder

_TITLES = {
    "prefect": "The Prefect server",
    "mlflow": "The MLflow server",
    "runner": "The runner",
    "keeper": "The keeper",
}
_ANSWER_SECONDS = 20.0
_RUNNER_SILENT_SECONDS = 180.0
"""Prefect's worker asks less often, up to every minute, while the server is away."""
_PREFECT_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # In the server's memory the leases of running flows would go with it, and Prefect would end a
    # flow whose lease is not known any more. On disk they stay; the keeper frees what was left.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
        "prefect.server.concurrency.lease_storage.filesystem"
    ),
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
}
_RUNNER_ENVIRONMENT = {
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PREFECT_WORKER_PREFETCH_SECONDS": "3",  # a run taken early finds its place still taken
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",  # longer than a server needs to be back
}


class Servers:
    """Where the servers are, and how each program is started."""

    def __init__(self, folder: Path, plan: Plan, line: Path, secret: str) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._plan = plan
        self._line = line
        self._secret = secret
        self._ports: dict[str, int] = {}
        if plan.prefect_api_url is None:
            self._choose("prefect", plan.prefect_port)
        if plan.mlflow_url is None:
            self._choose("mlflow", plan.mlflow_port)

    @property
    def own(self) -> tuple[str, ...]:
        """Which servers are started here."""
        return tuple(self._ports)

    @property
    def prefect_url(self) -> str:
        """Return where Prefect's pages are."""
        return self.prefect_api_url.removesuffix("/api")

    @property
    def prefect_api_url(self) -> str:
        """Return where Prefect's programs ask."""
        own = f"http://{ports.HOST}:{self._ports.get('prefect')}/api"
        return self._plan.prefect_api_url or own

    @property
    def mlflow_url(self) -> str:
        """Return where MLflow's pages are."""
        return self._plan.mlflow_url or f"http://{ports.HOST}:{self._ports.get('mlflow')}"

    def title(self, name: str) -> str:
        """Return what a person calls it, with its address."""
        port = self._ports.get(name)
        return _TITLES[name] + (f" (port {port})" if port else "")

    def first(self) -> list[Program]:
        """Return what has to be well before anything is said to be ready."""
        servers = [self._server(name) for name in self._ports]
        return [*servers, self._client("runner", _RUNNER_SILENT_SECONDS, self._plan.runs_at_once)]

    def keeper(self) -> Program:
        """Return what looks after the runs."""
        return self._client("keeper", _RUNNER_SILENT_SECONDS)

    def elsewhere(self, program: Program) -> Program | None:
        """Return the server on another port if its own was taken by somebody else; else none."""
        port = self._ports.get(program.name)
        if port is None or ports.is_free(port):
            return None
        self._choose(program.name, port)
        return self._server(program.name)

    def _choose(self, name: str, wanted: int) -> None:
        others = frozenset(port for other, port in self._ports.items() if other != name)
        port = ports.first_free(wanted, others)
        if port != wanted:
            title = name.replace("prefect", "Prefect").replace("mlflow", "MLflow")
            self.notes.append(f"Port {wanted} is taken, so {title} uses port {port}.")
        self._ports[name] = port

    def _server(self, name: str) -> Program:
        port = self._ports[name]
        url = f"http://{ports.HOST}:{port}"
        if name == "prefect":
            return self._program(
                name,
                family.command("prefect_server", self._folder, self._line, port),
                {
                    **_PREFECT_ENVIRONMENT,
                    "PREFECT_SERVER_API_HOST": ports.HOST,
                    "PREFECT_SERVER_API_PORT": str(port),
                    "PREFECT_UI_API_URL": f"{url}/api",
                    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": url,
                },
                lambda: answers(f"{url}/api/health", _ANSWER_SECONDS),
            )
        return self._program(
            name,
            family.command("mlflow_server", self._folder, self._line, port),
            {"MLFLOW_TRACKING_URI": self._plan.store},
            lambda: answers(f"{url}/health", _ANSWER_SECONDS),
        )

    def _client(self, name: str, silent_seconds: float, *arguments: object) -> Program:
        """Return a program that uses the servers and says by a file that it is well."""
        beat = child.beat_file(self._folder, name)
        seen = _contents(beat)

        def is_well() -> bool:
            nonlocal seen
            before, seen = seen, _contents(beat)
            return seen != before

        connected = {
            **_RUNNER_ENVIRONMENT,
            "PREFECT_API_URL": self.prefect_api_url,
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            **(prefect_variables(self._secret) if "prefect" in self.own else {}),
            **(mlflow_variables(self._secret) if "mlflow" in self.own else {}),
        }
        command = family.command(name, self._folder, self._line, *arguments)
        return self._program(name, command, connected, is_well, silent_seconds)

    def _program(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        is_well: Callable[[], bool],
        silent_seconds: float = Program.silent_seconds,
    ) -> Program:
        log = logs_folder(self._folder) / f"{name}.log"
        whole = {**os.environ, **environment}
        return Program(name, command, whole, log, is_well, silent_seconds)


def _contents(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
