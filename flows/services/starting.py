"""Start the servers of a folder, once, whoever asks at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from flows.services import family, mlflow_server, ports, prefect_database, sign_in_links
from flows.services.plan import Failure, Plan, failure_file, plan_file
from pipeline.errors import ConfigError, OrchestrationError, error_class
from pipeline.files.atomic_files import full_disk, storage_errors, write_private_text
from pipeline.local_services import (
    Services,
    answers,
    is_supervised,
    logs_folder,
    running,
    services_folder,
    state_file,
)
from pipeline.redaction import redacted
from pipeline.tracking.tracking_store import without_login
from pipeline.workspace import make_folder

Say = Callable[[str], None]

_LOOK_SECONDS = 0.1
_ORPHAN_SECONDS = 10.0
_STOP_SECONDS = 40.0
_PREFECT, _MLFLOW = "PREFECT_API_URL", "MLFLOW_TRACKING_URI"
_REMOTE = re.compile(r"^(https?|databricks)")


def start(folder: Path, prefect_port: int, mlflow_port: int, runs_at_once: int, say: Say) -> bool:
    """Start the servers unless they run; return whether this call did it.

    A second call at the same time waits for the first, and finds what it started.

    Args:
        folder: whose servers.
        prefect_port: the first to try.
        mlflow_port: the first to try.
        runs_at_once: how many flow runs may go on.
        say: gets a line for each step.

    Raises:
        ConfigError: if a port or a number is none.
        StorageError: if the folder may not be written.
        OrchestrationError: if a server does not start.
    """
    _check(prefect_port, mlflow_port, runs_at_once)
    if running(folder):
        return False
    with one_at_a_time(folder):
        if running(folder):
            return False
        family.clear(folder, _ORPHAN_SECONDS)
        plan = _plan(prefect_port, mlflow_port, runs_at_once)
        write_private_text(plan_file(folder), plan.model_dump_json(indent=2))
        failure_file(folder).unlink(missing_ok=True)
        state_file(folder).unlink(missing_ok=True)
        _supervise(folder, plan, say)
    return True


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let nobody else start the servers of a folder while the block runs.

    Raises:
        StorageError: if the folder may not be written.
    """
    lock = services_folder(folder) / "starting.lock"
    with storage_errors(lock):
        make_folder(logs_folder(folder))
        lock.touch()  # says at once whether the folder can be written
    with FileLock(lock):
        yield


def _check(prefect_port: int, mlflow_port: int, runs_at_once: int) -> None:
    if os.name != "posix":
        raise ConfigError(
            "`patchline up` needs Linux or macOS. Start `prefect server start` and `mlflow server` "
            f"yourself, and set {_PREFECT} and {_MLFLOW}."
        )
    for flag, port in (("--prefect-port", prefect_port), ("--mlflow-port", mlflow_port)):
        if not 1 <= port <= ports.LAST:
            raise ConfigError(
                f"{flag} {port} is not a port. Choose a number from 1024 to {ports.LAST}."
            )
    if prefect_port == mlflow_port:
        raise ConfigError(
            f"--prefect-port and --mlflow-port are both {prefect_port}, but each server needs a "
            "port of its own. Choose two."
        )
    if runs_at_once < 1:
        raise ConfigError(
            f"--runs-at-once {runs_at_once} would let no run begin. Choose 1 or more."
        )


def _plan(prefect_port: int, mlflow_port: int, runs_at_once: int) -> Plan:
    """Decide which servers to start; those that the user has configured are used as they are."""
    notes = []
    prefect = _configured_prefect()
    if prefect:
        notes.append(f"Prefect is the server {redacted(prefect)}, as {_PREFECT} says.")
    store = os.environ.get(_MLFLOW) or "sqlite:///mlflow.db"
    mlflow = without_login(store).rstrip("/") if _REMOTE.match(store) else None
    if mlflow:
        notes.append(f"MLflow is the server {redacted(mlflow)}, as {_MLFLOW} says.")
        if mlflow.startswith("http") and not answers(f"{mlflow}/health"):
            raise _silent("MLflow", mlflow, _MLFLOW)
    match = re.match(r"^sqlite:///(?!/)(.+)$", store)
    return Plan(
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        runs_at_once=runs_at_once,
        prefect_api_url=prefect,
        mlflow_url=mlflow,
        store=f"sqlite:///{Path(match[1]).resolve()}" if match else store,
        notes=tuple(notes),
    )


def _configured_prefect() -> str | None:
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if url and not answers(f"{url.rstrip('/')}/health"):
        raise _silent("Prefect", url, _PREFECT)
    return url.rstrip("/") if url else None


def _silent(name: str, url: str, variable: str) -> OrchestrationError:
    return OrchestrationError(
        f"The {name} server {redacted(url)} that {variable} names does not answer. "
        "Start it, or remove that setting to let `patchline up` start one."
    )


def _supervise(folder: Path, plan: Plan, say: Say) -> None:
    """Start the supervisor and wait until it says where the servers are."""
    environment = {**os.environ, **prefect_database.environment()}
    environment.pop(_MLFLOW, None)
    if plan.prefect_api_url is None:
        environment.pop(_PREFECT, None)
    log = logs_folder(folder) / "supervisor.log"
    read = log.stat().st_size if log.exists() else 0
    with storage_errors(log), log.open("ab") as stream:
        supervisor = subprocess.Popen(
            family.command(family.SUPERVISOR, folder),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
    try:
        while running(folder) is None:
            if supervisor.poll() is not None:
                raise _failure(folder, log)  # noqa: TRY301 - what follows is for every way out
            read = _pass_on(log, read, say)
            time.sleep(_LOOK_SECONDS)
        _pass_on(log, read, say)
    except BaseException:
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.kill()
        raise


def _pass_on(log: Path, read: int, say: Say) -> int:
    """Say the lines that the supervisor has written since, and return where the next begin."""
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
    try:
        failure = Failure.model_validate_json(failure_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        if full := full_disk(folder):
            return full
        held = " Another one lives, but is not ready." if is_supervised(folder) else ""
        return OrchestrationError(
            f"The supervisor ended without a word.{held} Look into {log}, and try again."
        )
    return error_class(failure.error)(failure.message)


def described(services: Services) -> list[str]:
    """Return what a person wants to know about servers that run, with links that sign in."""
    logs = os.path.relpath(logs_folder(services.folder))
    mlflow = redacted(sign_in_links.mlflow_link(services))
    if mlflow == redacted(services.mlflow_url):
        mlflow += mlflow_server.HOME
    return [
        f"Prefect  {redacted(sign_in_links.prefect_link(services))}",
        f"MLflow   {mlflow}",
        f"Logs     {logs}",
    ]
