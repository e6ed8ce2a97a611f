"""Start the servers of a folder, once, even if several commands try at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from patchline.flows import prefect_session
from patchline.flows.prefect_api import postgres, prefect_database, prefect_settings
from patchline.flows.services import mlflow_server, service_processes, store_choice
from patchline.flows.services.service_programs import (
    Failure,
    PlannedService,
    ServerOptions,
    StartupPlan,
    failure_file,
    plan_file,
)
from patchline.pipeline.errors import ConfigError, OrchestrationError, error_class
from patchline.pipeline.local_services import (
    POOL,
    Services,
    answers,
    find_running,
    is_supervised,
    logs_folder,
    pool_name,
    services_folder,
    state_file,
    wait_until_running,
)
from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.redaction import redact_text, without_credentials
from patchline.pipeline.web import sign_in
from patchline.pipeline.workers.host import environment_variables
from patchline.pipeline.workers.supervised_process import LAST_PORT
from patchline.pipeline.workspace.files.atomic_files import (
    full_disk,
    storage_errors,
)
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.tracking import team_stores
from patchline.pipeline.workspace.tracking.team_stores import TeamStores
from patchline.pipeline.workspace.tracking.tracking_store import absolute_store, without_login

Say = Callable[[str], None]

_POLL_SECONDS = 0.1
_ORPHAN_SECONDS = 10.0
_STOP_SECONDS = 40.0
_PREFECT, _MLFLOW = "PREFECT_API_URL", "MLFLOW_TRACKING_URI"
_REMOTE = re.compile(r"^(https?|databricks)")


def start(
    folder: Path,
    options: ServerOptions,
    say: Say,
    flags: TeamStores,
    config: Path | None = None,
    of_tools: Sequence[PlannedService] = (),
) -> bool:
    """Start the servers unless they are running; return whether this call started them.

    A second call at the same time waits for the first, and finds what it started.

    Args:
        folder: the working directory of the servers.
        options: the ports of the servers, and the number of concurrent runs.
        say: called with a line for each step.
        flags: the stores of a team that the command line names, if any.
        config: a YAML file that names them, if any.
        of_tools: the services of tools to run.

    Raises:
        ConfigError: if a port or the number of runs is out of range, or a store is wrong.
        StorageError: if the folder may not be written.
        OrchestrationError: if a server does not start.
    """
    _check(options, of_tools)
    if services := find_running(folder):
        _check_stores_are(folder, flags, config)
        _check_run(services, of_tools)
        return False
    with one_at_a_time(folder):
        if services := wait_until_running(folder):
            _check_stores_are(folder, flags, config)
            _check_run(services, of_tools)
            return False
        service_processes.clear(folder, _ORPHAN_SECONDS)
        stores, notes = store_choice.choose_stores(folder, flags, config)
        plan = _with_stores(folder, _plan(options, of_tools), stores, notes)
        plan.to_file(plan_file(folder), is_private=True)
        failure_file(folder).unlink(missing_ok=True)
        state_file(folder).unlink(missing_ok=True)
        _supervise(folder, plan, say)
        team_stores.remember(folder, stores)
    return True


def _check_stores_are(folder: Path, flags: TeamStores, config: Path | None) -> None:
    """Check that the running servers use the stores that the command names, if it names any.

    Raises:
        OrchestrationError: if they use others.
    """
    if not flags.model_fields_set and config is None:
        return
    used = team_stores.recall(folder)
    stores, _ = store_choice.choose_stores(folder, flags, config)
    if stores != used:
        raise OrchestrationError(
            "The servers are already running with other stores "
            f"({used.database or 'a database in the folder'}, {used.artifacts or 'artifacts in it'}"
            "). Run `patchline down` first, and then this command again."
        )


def _check_run(services: Services, of_tools: Sequence[PlannedService]) -> None:
    """Check that the services of tools that the command names are among those that run.

    Raises:
        OrchestrationError: if one does not run, or with another value.
    """
    for each in of_tools:
        flag, now = each.service.flag, services.of_tools.get(each.service.key)
        if now is None or now.argument != each.argument:
            how = f"with {flag} {now.argument}" if now else f"without {flag}"
            raise OrchestrationError(
                f"The servers are already running {how}. Run `patchline down` first, and then this "
                "command again."
            )


def _with_stores(
    folder: Path, plan: StartupPlan, stores: TeamStores, notes: list[str]
) -> StartupPlan:
    """Return the plan for a team's stores, which are checked.

    Raises:
        OrchestrationError: if one of them cannot be used.
    """
    if stores.are_local():
        return plan
    if stores.artifacts and plan.mlflow_url is None:
        _check_artifacts(stores.artifacts)
        notes = [*notes, f"Artifacts are stored in {stores.artifacts}."]
    update: dict[str, Any] = {"mlflow_environment": mlflow_server.artifact_environment(stores)}
    if stores.database:
        database = postgres.database(stores.database)
        postgres.prepare(database)
        notes = [*notes, f"MLflow and Prefect use {database.address}."]
        update |= {
            "pool": pool_name(folder),
            "store": database.for_mlflow(),
            "prefect_environment": database.for_prefect(),
        }
    return plan.model_copy(update={**update, "notes": (*plan.notes, *notes)})


def _check_artifacts(place: str) -> None:
    """Check that artifacts can be written.

    Raises:
        OrchestrationError: if they cannot.
        StorageError: if a folder may not be written.
    """
    if place.startswith("s3://"):
        store_choice.check(place)
        return
    with storage_errors(Path(place)):
        make_folder(Path(place))
    if not os.access(place, os.W_OK):
        raise OrchestrationError(
            f"The folder {place} for artifacts may not be written. Choose another --artifacts."
        )


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Prevent other processes from starting the servers of a folder while the block runs.

    Raises:
        StorageError: if the folder may not be written.
    """
    with storage_errors(logs_folder(folder)):
        make_folder(logs_folder(folder))
    return hold_lock(services_folder(folder) / "starting.lock")


def check_port(flag: str, port: int) -> None:
    """Refuse a number that is no port.

    Raises:
        ConfigError: naming the flag.
    """
    if not 1 <= port <= LAST_PORT:
        raise ConfigError(f"{flag} {port} is not a port. Choose a number from 1024 to {LAST_PORT}.")


def _check(options: ServerOptions, of_tools: Sequence[PlannedService]) -> None:
    if os.name != "posix":
        raise ConfigError(
            "`patchline up` needs Linux or macOS. Start `prefect server start` and `mlflow server` "
            f"yourself, and set {_PREFECT} and {_MLFLOW}."
        )
    ports = [("--prefect-port", options.prefect_port), ("--mlflow-port", options.mlflow_port)]
    ports += [(f"{each.service.flag}-port", each.port) for each in of_tools]
    owners: dict[int, str] = {}
    for flag, port in ports:
        check_port(flag, port)
        if port in owners:
            raise ConfigError(
                f"{owners[port]} and {flag} are both {port}, but each server needs a port of its "
                "own. Choose two different ones."
            )
        owners[port] = flag
    if options.max_concurrent_runs < 1:
        raise ConfigError(
            f"--max-concurrent-runs {options.max_concurrent_runs} allows no run. Choose 1 or more."
        )


def _plan(options: ServerOptions, of_tools: Sequence[PlannedService]) -> StartupPlan:
    """Decide which servers to start; servers that the user has configured are used instead."""
    notes = []
    prefect = prefect_settings.server_url()
    pool = POOL
    if prefect:
        prefect_settings.check_server(prefect)
        pool = _pool_on_shared_server()
        notes.append(f"Using the Prefect server {redact_text(prefect)} of Prefect's settings.")
    store = absolute_store(os.environ.get(_MLFLOW) or "")
    mlflow = without_login(store).rstrip("/") if _REMOTE.match(store) else None
    if mlflow:
        notes.append(f"Using the MLflow server {redact_text(mlflow)}, which {_MLFLOW} names.")
        if mlflow.startswith("http"):
            environment_variables.check_proxy(mlflow)
        if mlflow.startswith("http") and not answers(f"{mlflow}/health"):
            raise OrchestrationError(
                f"The MLflow server {redact_text(mlflow)} that {_MLFLOW} names does not answer. "
                f"Start it, or unset {_MLFLOW} to let `patchline up` start one."
            )
    return StartupPlan(
        **dict(options),
        services=tuple(of_tools),
        pool=pool,
        prefect_api_url=prefect,
        mlflow_url=mlflow,
        store=store,
        notes=tuple(notes),
    )


def _pool_on_shared_server() -> str:
    """Return the pool of the working directory on the server that Prefect's settings name."""
    from patchline.flows.schedules import work_pools

    with prefect_session.connect():
        return work_pools.on_shared_server()


def _supervise(folder: Path, plan: StartupPlan, say: Say) -> None:
    """Start the supervisor and wait until it has written the addresses of the servers."""
    database = {} if plan.prefect_environment else prefect_database.environment()
    environment = {**os.environ, **database}
    environment.pop(_MLFLOW, None)
    if plan.prefect_api_url is None:
        environment.pop(_PREFECT, None)
    log = logs_folder(folder) / "supervisor.log"
    read = log.stat().st_size if log.exists() else 0
    with storage_errors(log), log.open("ab") as stream:
        supervisor = subprocess.Popen(
            service_processes.command(service_processes.SUPERVISOR, folder),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
    try:
        while find_running(folder) is None:
            if supervisor.poll() is not None:
                raise _failure(folder, log)  # noqa: TRY301 - the handler below is for every error
            read = _pass_on(log, read, say)
            time.sleep(_POLL_SECONDS)
        _pass_on(log, read, say)
    except BaseException:
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.kill()
        raise


def _pass_on(log: Path, read: int, say: Say) -> int:
    """Pass on new lines of the supervisor about its progress; return how far the log is read."""
    with log.open("rb") as stream:
        stream.seek(read)
        text = stream.read()
    whole = text[: text.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        words = line.split(maxsplit=2)
        if "is ready after" in line:
            say(words[-1])
    return read + len(whole)


def _failure(folder: Path, log: Path) -> Exception:
    if failure := Failure.from_file_or_none(failure_file(folder)):
        return error_class(failure.error)(failure.message)
    if full := full_disk(folder):
        return full
    held = " Another one is running, but is not ready." if is_supervised(folder) else ""
    return OrchestrationError(
        f"The supervisor ended without an error message.{held} See {log}, and try again."
    )


def describe_services(services: Services) -> list[str]:
    """Return lines with links that sign in to the running servers, and the folder of the logs."""
    logs = os.path.relpath(logs_folder(services.folder))
    titles = {each.key: each.title for _, each in tools().services()}
    of_tools = [
        f"{titles.get(key, key):<8} {each.url} ({each.argument})"
        for key, each in services.of_tools.items()
    ]
    mlflow = without_credentials(sign_in.mlflow_link(services))
    if mlflow == without_credentials(services.mlflow_url):
        mlflow += mlflow_server.HOME
    return [
        f"Prefect  {without_credentials(sign_in.prefect_link(services))}",
        f"MLflow   {mlflow}",
        *of_tools,
        f"Logs     {logs}",
    ]
