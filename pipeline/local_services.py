"""What `patchline up` runs for a folder, as every other command finds it."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

from pydantic import ValidationError

from pipeline.files.held_locks import is_held
from pipeline.section import Section
from pipeline.workspace import WORKSPACE

POOL = "patchline"
"""The work pool whose runs the runner starts."""
_STATE, _LOCK, _LOGS = "state.json", "supervisor.lock", "logs"
_OK = 200


class Services(Section):
    """The servers of one folder, and the supervisor that keeps them going."""

    folder: Path
    """Whose runs, schedules and models they show."""
    pid: int
    """The supervisor's process."""
    prefect_url: str
    """Prefect's pages."""
    prefect_api_url: str
    """What `PREFECT_API_URL` has to be."""
    mlflow_url: str
    """MLflow's pages, and what `MLFLOW_TRACKING_URI` has to be."""
    own: tuple[str, ...]
    """Which of `prefect` and `mlflow` the supervisor runs; the user runs the others."""
    pool: str = POOL
    started_at: str
    """When they were ready: ISO 8601, UTC."""
    versions: dict[str, str]
    """Of the installed packages when they started."""
    notes: tuple[str, ...] = ()
    """What the user should know, such as a port that was taken."""


def services_folder(folder: Path | None = None) -> Path:
    """Return where the servers of a folder (the working directory) keep their files."""
    return (folder or Path()).resolve() / WORKSPACE / "services"


def state_file(folder: Path | None = None) -> Path:
    """Return the file that says where the servers are."""
    return services_folder(folder) / _STATE


def supervisor_lock(folder: Path | None = None) -> Path:
    """Return the file that the supervisor holds a lock on as long as it lives."""
    return services_folder(folder) / _LOCK


def logs_folder(folder: Path | None = None) -> Path:
    """Return the folder of the servers' logs."""
    return services_folder(folder) / _LOGS


def running(folder: Path | None = None) -> Services | None:
    """Return the servers of a folder (the working directory); none unless they are kept going.

    It opens two small files and asks no server.
    """
    try:
        services = Services.model_validate_json(state_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return services if is_supervised(folder) and _exists(services.pid) else None


def is_supervised(folder: Path | None = None) -> bool:
    """Return whether a supervisor lives, be it ready or about to be."""
    return is_held(supervisor_lock(folder))


def answers(url: str, seconds: float = 5.0) -> bool:
    """Return whether a server answers a GET with 200; a proxy is never asked."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=seconds) as response:
            return bool(response.status == _OK)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _exists(pid: int) -> bool:
    """Return whether the process lives; who looks at a lock holds it a moment, so ask this too."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
