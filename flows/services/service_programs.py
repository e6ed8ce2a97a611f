"""The programs of `patchline up`: command, environment, port and health check of each.

`patchline up` writes the plan to a file; the supervisor deletes it once it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from patchline.flows.prefect_api import prefect_settings
from patchline.flows.prefect_api.postgres import PASSWORD_VARIABLE
from patchline.flows.services import mlflow_server, service_processes
from patchline.pipeline.frozen_model import DocumentedModel, FrozenModel
from patchline.pipeline.local_services import (
    HOST,
    OTHER_MLFLOW_LOGINS,
    POOL,
    USER,
    ToolServer,
    answers,
    logs_folder,
    mlflow_variables,
    prefect_variables,
    services_folder,
)
from patchline.pipeline.workers import supervised_process
from patchline.pipeline.workers.supervised_process import Program
from patchline.plugin_api import ToolService


class PlannedService(FrozenModel):
    """A service of a tool, and what it is started with."""

    service: ToolService
    argument: str
    """The value of its flag."""
    port: int
    """The first port to try."""


class ServerOptions(DocumentedModel):
    """Ports and runs of `patchline up`."""

    prefect_port: int = 4200
    """Port for the Prefect UI; the next free port if it is taken."""
    mlflow_port: int = 5000
    """Port for the MLflow UI; the next free port if it is taken."""
    max_concurrent_runs: int = 2
    """Maximum concurrent runs of schedules and watches."""


class StartupPlan(ServerOptions):
    """Which servers to start, on which ports, and which servers of the user to use instead."""

    pool: str = POOL
    """The work pool whose runs the runner executes."""
    prefect_api_url: str | None
    """The user's own Prefect server; none to start one."""
    mlflow_url: str | None
    """The user's own MLflow server; none to start one."""
    store: str
    """The store that the MLflow server serves."""
    mlflow_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the MLflow server for a team's stores."""
    prefect_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the Prefect server for a team's database."""
    services: tuple[PlannedService, ...] = ()
    """The services of tools to run."""
    notes: tuple[str, ...]
    """What to print for the user."""


class Failure(FrozenModel):
    """Why the supervisor gave up; `patchline up` raises this error."""

    error: str
    """Name of the error's class."""
    message: str


def plan_file(folder: Path) -> Path:
    """Return the file with the plan."""
    return services_folder(folder) / "plan.json"


def failure_file(folder: Path) -> Path:
    """Return the file with the failure."""
    return services_folder(folder) / "failure.json"


_TITLES = {"prefect": "The Prefect server", "mlflow": "The MLflow server"}
_ANSWER_SECONDS = 20.0
_HEARTBEAT_SECONDS = 180.0
"""Prefect's worker polls less often, up to every minute, while the server does not answer."""
_PREFECT_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Leases of running flows in the server's memory would be lost with it, and Prefect would end a
    # flow whose lease it does not know. On disk they survive; the keeper releases orphaned ones.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
        "prefect.server.concurrency.lease_storage.filesystem"
    ),
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
}
_CLIENT_ENVIRONMENT = {
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "PREFECT_WORKER_PREFETCH_SECONDS": "3",  # a run fetched too early finds no free slot
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",  # longer than a server needs to restart
}


class Servers:
    """The ports of the servers, and the programs to start."""

    def __init__(self, folder: Path, plan: StartupPlan, lifeline: Path, secret: str) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._plan = plan
        self._lifeline = lifeline
        self._secret = secret
        self._ports: dict[str, int] = {}
        if plan.prefect_api_url is None:
            self._choose_port("prefect", plan.prefect_port)
        if plan.mlflow_url is None:
            self._choose_port("mlflow", plan.mlflow_port)
        self._of_tools = {each.service.name: each for each in plan.services}
        for name, planned in self._of_tools.items():
            self._choose_port(name, planned.port)

    @property
    def own(self) -> tuple[str, ...]:
        """Which of Prefect's and MLflow's servers are started here."""
        return tuple(name for name in self._ports if name not in self._of_tools)

    @property
    def of_tools(self) -> dict[str, ToolServer]:
        """The services of tools, by the names of their flags."""
        return {
            each.service.key: ToolServer(argument=each.argument, url=self._address(name))
            for name, each in self._of_tools.items()
        }

    @property
    def prefect_url(self) -> str:
        """The address of the Prefect UI."""
        return self.prefect_api_url.removesuffix("/api")

    @property
    def prefect_api_url(self) -> str:
        """The address of the Prefect API."""
        return self._plan.prefect_api_url or f"{self._address('prefect')}/api"

    @property
    def mlflow_url(self) -> str:
        """The address of the MLflow server and its UI."""
        return self._plan.mlflow_url or self._address("mlflow")

    def title(self, name: str) -> str:
        """Return the name of a program in messages, with its port."""
        port = self._ports.get(name)
        title = _TITLES.get(name, f"The {name.replace('_', ' ')}")
        return title + (f" (port {port})" if port else "")

    def first(self) -> list[Program]:
        """Return the programs that must be well before `patchline up` reports that all is ready."""
        servers = [self._server(name) for name in self._ports]
        return [*servers, self._client("runner", self._plan.pool, self._plan.max_concurrent_runs)]

    def keeper(self) -> Program:
        """Return the keeper, which starts last."""
        return self._client("keeper")

    def elsewhere(self, program: Program) -> Program | None:
        """Return a server on another port if another program has taken its own; else none."""
        port = self._ports.get(program.name)
        if port is None or supervised_process.is_free_port(port):
            return None
        self._choose_port(program.name, port)
        return self._server(program.name)

    def _choose_port(self, name: str, preferred: int) -> None:
        others = frozenset(port for other, port in self._ports.items() if other != name)
        port = supervised_process.first_free_port(preferred, others)
        if port != preferred:
            of_tool = f"the {name.replace('_', ' ')}"
            title = {"prefect": "Prefect", "mlflow": "MLflow"}.get(name, of_tool)
            self.notes.append(f"Port {preferred} is taken, so {title} uses port {port}.")
        self._ports[name] = port

    def _address(self, name: str) -> str:
        return f"http://{HOST}:{self._ports[name]}"

    def _server(self, name: str) -> Program:
        url, port = self._address(name), self._ports[name]
        command = self._command(f"{name}_server", port)
        if of_tool := self._of_tools.get(name):
            health = url + of_tool.service.health
            environment = self._client_environment()
            command = self._command("tool_service", name, of_tool.argument, port)
        elif name == "prefect":
            health = f"{url}/api/health"
            environment = {
                **prefect_settings.own_server_environment(),
                **_PREFECT_ENVIRONMENT,
                **self._plan.prefect_environment,
                "PREFECT_SERVER_API_HOST": HOST,
                "PREFECT_SERVER_API_PORT": str(port),
                "PREFECT_UI_API_URL": f"{url}/api",
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": url,
            }
        else:
            health = f"{url}/health"
            environment = {
                **mlflow_server.environment(self._plan.store),
                **self._plan.mlflow_environment,
            }
        return self._program(name, command, environment, lambda: answers(health, _ANSWER_SECONDS))

    def _client(self, name: str, *arguments: object) -> Program:
        """Return a program that uses the servers and reports by a heartbeat that it is well."""
        is_well = supervised_process.is_beating(self._folder, name)
        command = self._command(name, *arguments)
        environment = self._client_environment()
        return self._program(name, command, environment, is_well, _HEARTBEAT_SECONDS)

    def _client_environment(self) -> dict[str, str]:
        """Return the environment of a program that uses the servers."""
        foreign = {*(OTHER_MLFLOW_LOGINS if "mlflow" in self.own else ()), PASSWORD_VARIABLE}
        return {
            **{given: value for given, value in os.environ.items() if given not in foreign},
            **_CLIENT_ENVIRONMENT,
            "PREFECT_API_URL": self.prefect_api_url,
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            **(self._prefect_client() if "prefect" in self.own else {}),
            **(mlflow_variables(self._secret) if "mlflow" in self.own else {}),
        }

    def _prefect_client(self) -> dict[str, str]:
        return {
            **prefect_settings.own_client_environment(f"{USER}:{self._secret}"),
            **prefect_variables(self._secret),
        }

    def _command(self, module: str, *arguments: object) -> list[str]:
        return service_processes.command(module, self._folder, self._lifeline, *arguments)

    def _program(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        is_well: Callable[[], bool],
        silent_seconds: float = Program.silent_seconds,
    ) -> Program:
        log = logs_folder(self._folder) / f"{name}.log"
        return Program(name, command, environment, log, is_well, silent_seconds)
