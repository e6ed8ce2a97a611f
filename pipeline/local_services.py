"""The servers that `patchline up` runs for a folder, as every other command finds them."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.host import proxies
from patchline.pipeline.workspace.files.file_locks import is_held
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

POOL = "patchline"
"""The work pool whose runs the runner starts."""
HOST = "127.0.0.1"
"""The only interface that the servers listen on."""
_STATE, _LOCK, _LOGS = "state.json", "supervisor.lock", "logs"
_OK = 200
_RESTORING_SECONDS, _POLL_SECONDS = 5.0, 0.1


class ToolServer(FrozenModel):
    """A service of a tool that runs."""

    argument: str
    """The value of its flag."""
    url: str


class Services(FrozenModel):
    """The servers of one folder, and the supervisor that keeps them running."""

    folder: Path
    """The working directory whose runs, schedules and models they show."""
    pid: int
    """The supervisor's process."""
    prefect_url: str
    """Address of the Prefect UI."""
    prefect_api_url: str
    """Value for `PREFECT_API_URL`."""
    mlflow_url: str
    """Address of the MLflow UI, and value for `MLFLOW_TRACKING_URI`."""
    own: tuple[str, ...]
    """Which of `prefect` and `mlflow` the supervisor runs; the user runs the other."""
    pool: str = POOL
    of_tools: dict[str, ToolServer] = Field(default_factory=dict)
    """Services of tools, by the names of their flags."""
    started_at: str
    """When they became ready: ISO 8601, UTC."""
    versions: dict[str, str]
    """Versions of the packages when they started."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as a port that was taken."""

    @model_validator(mode="before")
    @classmethod
    def _take_earlier(cls, values: Any) -> Any:
        """Read `X` and `X_url`, by which an earlier version recorded the service of a flag `X`."""
        if not isinstance(values, dict):
            return values
        kept, of_tools = dict(values), {}
        for name in [each for each in kept if f"{each}_url" in kept]:
            argument, url = kept.pop(name), kept.pop(f"{name}_url")
            if url:
                of_tools[name] = {"argument": argument, "url": url}
        return {"of_tools": of_tools, **kept}


def pool_name(folder: Path) -> str:
    """Return the work pool of a folder on a Prefect server that other machines use, too.

    Their runners must not take its runs, which need this folder.
    """
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])
    return f"{POOL}-{host}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]}"


def services_folder(folder: Path | None = None) -> Path:
    """Return where the servers of a folder (the working directory) keep their files."""
    return (folder or Path()).resolve() / WORKSPACE / "services"


def state_file(folder: Path | None = None) -> Path:
    """Return the file with the addresses of the servers."""
    return services_folder(folder) / _STATE


def supervisor_lock(folder: Path | None = None) -> Path:
    """Return the file that the supervisor locks while it lives."""
    return services_folder(folder) / _LOCK


def logs_folder(folder: Path | None = None) -> Path:
    """Return the folder of the servers' logs."""
    return services_folder(folder) / _LOGS


def running(folder: Path | None = None) -> Services | None:
    """Return the servers of a folder (the working directory); none without a supervisor.

    This reads two small files and sends no request.
    """
    services = read_state(folder)
    here = services is not None and is_supervised(folder) and _exists(services.pid)
    return services if here else None


def read_state(folder: Path | None = None) -> Services | None:
    """Return what the file with the addresses says, whether they still hold or not.

    None if there is no such file, or it cannot be read. The supervisor, while it lives, writes a
    damaged file again.
    """
    try:
        return Services.model_validate_json(state_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def running_soon(folder: Path) -> Services | None:
    """Return the servers of a folder, once a living supervisor has restored a damaged state."""
    deadline = time.monotonic() + _RESTORING_SECONDS
    while (services := running(folder)) is None and time.monotonic() < deadline:
        if not is_supervised(folder):
            return None
        time.sleep(_POLL_SECONDS)
    return services


def is_supervised(folder: Path | None = None) -> bool:
    """Return whether a supervisor is alive, even if its servers are not ready yet."""
    return is_held(supervisor_lock(folder))


def answers(url: str, seconds: float = 5.0) -> bool:
    """Return whether a server answers a GET with 200; on this machine, no proxy is used."""
    own = [urllib.request.ProxyHandler({})] if proxies.is_here(url) else []
    try:
        with urllib.request.build_opener(*own).open(url, timeout=seconds) as response:
            return bool(response.status == _OK)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _exists(pid: int) -> bool:
    """Return whether the process is alive; a lock may look held while another process checks it."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
