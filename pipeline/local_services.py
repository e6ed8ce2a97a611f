"""The servers that `patchline up` runs for a folder, as every other command finds them.

Whoever can read the file can use the servers, so only its owner may read it. The secret is passed
to processes in their environment, never on a command line, and is only sent to the servers that it
was generated for.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.workers.host import environment_variables
from patchline.pipeline.workspace.files.atomic_files import write_private_text
from patchline.pipeline.workspace.files.file_locks import is_held
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder

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


def find_running(folder: Path | None = None) -> Services | None:
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
    return Services.from_file_or_none(state_file(folder))


def wait_until_running(folder: Path) -> Services | None:
    """Return the servers of a folder, once a living supervisor has restored a damaged state."""
    wait_until(
        lambda: find_running(folder) or not is_supervised(folder), _POLL_SECONDS, _RESTORING_SECONDS
    )
    return find_running(folder)


def is_supervised(folder: Path | None = None) -> bool:
    """Return whether a supervisor is alive, even if its servers are not ready yet."""
    return is_held(supervisor_lock(folder))


def answers(url: str, seconds: float = 5.0) -> bool:
    """Return whether a server answers a GET with 200; on this machine, no proxy is used."""
    own = [urllib.request.ProxyHandler({})] if environment_variables.is_here(url) else []
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


USER = "patchline"
"""The user name that goes with the secret."""
PREFECT_VARIABLE = "PREFECT_API_AUTH_STRING"
MLFLOW_VARIABLES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
OTHER_MLFLOW_LOGINS = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
"""Other ways to sign in, to the user's own servers: never used for ours."""
_SECRET, _LOGIN = "secret", "login.env"
_BYTES = 32
_PRIVATE_FOLDER = 0o700
_shown_to: str | None = None
"""The MLflow server whose secret is in this process's environment."""
_shown: dict[str, str | None] = {}
"""The variables that were set for it."""
_of_user: dict[str, str | None] = {}
"""The previous values of these variables."""


def new_secret() -> str:
    """Return a random secret that needs no quotes in a shell."""
    return secrets.token_hex(_BYTES)


def secret_file(folder: Path | None = None) -> Path:
    """Return the file with the secret of a folder's servers."""
    return services_folder(folder) / _SECRET


def login_file(folder: Path | None = None) -> Path:
    """Return the file with the variables by which a shell signs in; it exists while servers run."""
    return services_folder(folder) / _LOGIN


def ensure_secret(folder: Path) -> str:
    """Return the secret of a folder's servers; generate one if there is none."""
    return secret(folder) or _make_secret(folder)


def secret(folder: Path | None = None) -> str | None:
    """Return the secret of the servers of a folder (the working directory), if there is one."""
    try:
        return secret_file(folder).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def prefect_variables(value: str) -> dict[str, str]:
    """Return the variables that Prefect's client needs in its environment."""
    return {PREFECT_VARIABLE: f"{USER}:{value}"}


def mlflow_variables(value: str) -> dict[str, str]:
    """Return the variables that MLflow's client needs in its environment."""
    return dict(zip(MLFLOW_VARIABLES, (USER, value), strict=True))


def prefect_login(api_url: str) -> dict[str, str]:
    """Return the variables for a Prefect API; none unless `patchline up` runs it in this folder."""
    services = find_running()
    ours = services and "prefect" in services.own and services.prefect_api_url == api_url
    value = secret() if ours else None
    return prefect_variables(value) if value else {}


def log_in_to_mlflow(uri: str) -> None:
    """Put the secret for an MLflow server into this process's environment, if it is ours.

    The user's own credentials are restored as soon as another store is used; those that have been
    set since then, as from its address, stay.
    """
    global _shown_to  # noqa: PLW0603 - a process has one environment
    if _shown_to not in (None, uri):
        _shown_to = None
        if all(os.environ.get(name) == value for name, value in _shown.items()):
            _set(_of_user)
    if not uri.startswith("http"):
        return
    services = find_running()
    ours = services and "mlflow" in services.own and services.mlflow_url == uri
    value = secret() if ours else None
    if value is None:
        return  # a server that is restarting keeps its secret
    if _shown_to is None:
        names = (*MLFLOW_VARIABLES, *OTHER_MLFLOW_LOGINS)
        _of_user.update({name: os.environ.get(name) for name in names})
    _shown_to = uri
    _shown.update({**dict.fromkeys(OTHER_MLFLOW_LOGINS), **mlflow_variables(value)})
    _set(_shown)


def write_login(services: Services, value: str) -> None:
    """Write the file with the variables by which a shell signs in."""
    lines: dict[str, str] = {}
    if "prefect" in services.own:
        lines |= {"PREFECT_API_URL": services.prefect_api_url, **prefect_variables(value)}
    if "mlflow" in services.own:
        lines |= {"MLFLOW_TRACKING_URI": services.mlflow_url, **mlflow_variables(value)}
    text = "".join(f"{name}={line}\n" for name, line in lines.items())
    _write_private(login_file(services.folder), text)


def restore_login(services: Services, value: str) -> None:
    """Write the secret and the file for a shell again."""
    _write_private(secret_file(services.folder), f"{value}\n")
    write_login(services, value)


def forget_login(folder: Path) -> None:
    """Delete the secret, so that copies of it become useless."""
    for file in (login_file(folder), secret_file(folder)):
        file.unlink(missing_ok=True)


def _make_secret(folder: Path) -> str:
    value = new_secret()
    _write_private(secret_file(folder), f"{value}\n")
    return value


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, in a folder that only its owner can enter."""
    make_folder(file.parent)
    file.parent.chmod(_PRIVATE_FOLDER)
    write_private_text(file, text)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
