"""The commands `patchline up`, `down` and `worker`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from patchline.flows.commands.switches import Flat, Json, Switch, add_flags, dump_given_flags, emit
from patchline.flows.prefect_session import connect
from patchline.flows.progress.progress_display import display, show_progress
from patchline.flows.services import starting, stopping
from patchline.flows.services.service_programs import PlannedService, ServerOptions
from patchline.flows.services.stopping import Supervised
from patchline.pipeline import local_services
from patchline.pipeline.errors import ConfigError, OrchestrationError
from patchline.pipeline.local_services import Services
from patchline.pipeline.plugin_system.tools import Tool, tools
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.web import sign_in
from patchline.pipeline.workspace.tracking.team_stores import TeamStores
from patchline.pipeline.workspace.tracking.tracking_store import use_store
from patchline.plugin_api import ToolService

_OWN_FLAGS = (*ServerOptions.model_fields, *TeamStores.model_fields, "config", "json")
_LOGS = ("prefect", "mlflow", "runner", "keeper", "supervisor", "runs")
_TAKEN = (
    *(f"--{name.replace('_', '-')}" for name in _OWN_FLAGS),
    *(f"{name}.log" for name in _LOGS),
)
"""Flags of `up` and logs that no service of a tool may take."""


def build(_: list[str]) -> Callable[..., None]:
    """Return the command `up`, with the flags of the services of the installed tools."""
    flags: dict[str, Any] = {}
    for _tool, service in _services():
        flags[service.key] = (str | None, Field(default=None, description=service.help))
        port = Field(default=service.port, description=service.port_help)
        flags[f"{service.key}_port"] = (int, port)
    chosen = create_model("FlagsOfTools", **flags)

    def up(
        *,
        options: Flat[ServerOptions] = None,
        stores: Flat[TeamStores] = None,
        config: Path | None = None,
        settings: Any = None,
        as_json: Json = False,
    ) -> None:
        """Start the servers of this folder: Prefect, MLflow, and a runner for its schedules.

        Parameters
        ----------
        options
            Ports and runs.
        stores
            Stores of a team.
        config
            YAML file with these settings: database, artifacts, artifact_access, password_file.
        settings
            Flags of the installed tools.
        """
        planned = _plan_services(dump_given_flags(settings))
        folder = Path.cwd().resolve()
        with show_progress():
            if local_services.find_running(folder) is None:
                display().stage("Starting Prefect, MLflow and a runner")
            begun = starting.start(
                folder,
                options or ServerOptions(),
                display().note,
                stores or TeamStores(),
                config,
                planned,
            )
        _print_services(folder, begun=begun, as_json=as_json)

    return add_flags(up, chosen)


def _services() -> Iterator[tuple[Tool, ToolService]]:
    return tools().besides(_TAKEN).services()


def _plan_services(given: Mapping[str, Any]) -> list[PlannedService]:
    """Return the services of tools that flags ask for, with checked values."""
    planned = []
    for tool, service in _services():
        port = given.get(f"{service.key}_port", service.port)
        starting.check_port(f"{service.flag}-port", port)
        if (argument := given.get(service.key)) is not None:
            if service.check:
                tool.load(service.check)(argument)
            planned.append(PlannedService(service=service, argument=argument, port=port))
        elif f"{service.key}_port" in given:
            raise ConfigError(
                f"{service.flag}-port is {port}, but nothing is started there without "
                f"{service.flag}. Add it, or leave out the port."
            )
    return planned


def _print_services(folder: Path, *, begun: bool, as_json: bool) -> None:
    """Print where the services are, and notes about them.

    Raises:
        OrchestrationError: if they have ended.
    """
    services = local_services.find_running(folder)
    if services is None:
        raise OrchestrationError(
            "The servers have ended right after their start. See "
            f"{local_services.logs_folder(folder) / 'supervisor.log'}, and try again."
        )
    for note in (*services.notes, *_versions_apart(services)):
        print(note, file=sys.stderr)
    if as_json:
        emit(_as_json(services, already_running=not begun), as_json=True)
        return
    if not begun:
        print(f"The servers are already running (process {services.pid}).\n")
    print("\n".join(starting.describe_services(services)))
    if services.own:
        print("\nA link signs a browser in once, within an hour. `patchline up` prints new links.")
    print("\n`patchline down` stops the services once active runs finish.")


def down(*, now: Switch = False, as_json: Json = False) -> None:
    """Stop the services once active runs finish.

    Parameters
    ----------
    now
        Stop active runs, too; resume them later with `patchline run --resume`.
    """
    folder = Path.cwd().resolve()
    (supervisor, stopped), stopped_runs = _wait_for_supervisor(folder), 0
    if supervisor is not None:
        stopped = True
        with show_progress():
            display().stage("Stopping Prefect, MLflow and the runner")
            stopped_runs = stopping.stop(folder, supervisor, now=now, say=display().note)
    emit(
        {"stopped": stopped, "folder": str(folder), "stopped_runs": stopped_runs},
        "Stopped." if stopped else "No services are running here.",
        as_json=as_json,
    )


def _wait_for_supervisor(folder: Path) -> tuple[Supervised | None, bool]:
    """Return the supervisor, once a `patchline up` in progress has finished.

    Without one, what a killed supervisor left is ended; the second value says whether that was so.

    Raises:
        OrchestrationError: if the supervisor is alive where its processes cannot be seen from here.
    """
    services = local_services.find_running(folder)
    if services is not None:
        _check_it_is_here(folder)
        return Supervised.of(services), False
    if not local_services.services_folder(folder).exists():
        return None, False
    with starting.one_at_a_time(folder):
        supervisor = stopping.find_supervisor(folder)
        if supervisor is None:
            _check_it_is_here(folder)
        return supervisor, supervisor is None and stopping.clear(folder)


def _check_it_is_here(folder: Path) -> None:
    if stopping.is_supervised_elsewhere(folder):
        raise OrchestrationError(
            "The servers of this folder run in another container or on another machine. Run "
            "`patchline down` there."
        )


def _versions_apart(services: Services) -> list[str]:
    """Return a line if the installed versions differ from the running ones."""
    apart = [
        f"{name} {version} is running, {metadata.version(name)} is installed"
        for name, version in services.versions.items()
        if metadata.version(name) != version
    ]
    hint = "`patchline down` and `patchline up` switch to the installed versions"
    return [f"{'; '.join(apart)}; {hint}."] if apart else []


def _as_json(services: Services, *, already_running: bool) -> dict[str, object]:
    of_tools = {f"{service.key}_url": None for _, service in _services()}
    return {
        "prefect_url": services.prefect_url,
        "mlflow_url": without_credentials(services.mlflow_url),
        "pid": services.pid,
        "folder": str(services.folder),
        "already_running": already_running,
        "prefect_api_url": services.prefect_api_url,
        "prefect_login_url": without_credentials(sign_in.prefect_link(services)),
        "mlflow_login_url": without_credentials(sign_in.mlflow_link(services)),
        "login_file": str(local_services.login_file(services.folder)) if services.own else None,
        **of_tools,
        **{f"{key}_url": each.url for key, each in services.of_tools.items()},
        "logs": str(local_services.logs_folder(services.folder)),
        "notes": list(services.notes),
    }


def worker(*, work_pool: str, max_concurrent_runs: int = 1) -> int:
    """Execute scheduled runs of a work pool in this folder, until Ctrl-C.

    Parameters
    ----------
    work_pool
        Name of the work pool, as in `patchline schedule create --work-pool`; created if it does
        not exist.
    max_concurrent_runs
        Maximum concurrent runs of this worker.
    """
    if max_concurrent_runs < 1:
        raise ConfigError(
            f"--max-concurrent-runs {max_concurrent_runs} allows no run. Choose 1 or more."
        )
    with connect():
        from patchline.flows.schedules import work_pools
        from patchline.flows.work_pools import pool_worker

        work_pools.ensure(work_pools.check_name(work_pool), served_here=True)
        use_store()  # the runs use the same, and sign in
        environment = dict(os.environ)
        command = pool_worker.command(Path.cwd().resolve(), work_pool, max_concurrent_runs)
    return _run_and_follow(command, environment)


def _run_and_follow(command: list[str], environment: dict[str, str]) -> int:
    """Run a process that ends with this one, pass signals on to it, and return its exit code."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: process.send_signal(received))
        return process.wait()
