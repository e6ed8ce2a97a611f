"""How our own processes sign in to the servers of `patchline up`: with a random secret in a file.

Whoever can read the file can use the servers, so only its owner may read it. The secret is passed
to processes in their environment, never on a command line, and is only sent to the servers that it
was generated for.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from patchline.pipeline.local_services import Services, running, services_folder
from patchline.pipeline.workspace.files.atomic_files import write_private_text
from patchline.pipeline.workspace.files.workspace_folder import make_folder

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
    return secret(folder) or _made(folder)


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
    services = running()
    ours = services and "prefect" in services.own and services.prefect_api_url == api_url
    value = secret() if ours else None
    return prefect_variables(value) if value else {}


def log_in_to_mlflow(uri: str) -> None:
    """Put the secret for an MLflow server into this process's environment, if it is ours.

    The user's own credentials are restored as soon as another store is used.
    """
    global _shown_to  # noqa: PLW0603 - a process has one environment
    if _shown_to not in (None, uri):
        _shown_to = None
        _set(_of_user)
    if not uri.startswith("http"):
        return
    services = running()
    ours = services and "mlflow" in services.own and services.mlflow_url == uri
    value = secret() if ours else None
    if value is None:
        return  # a server that is restarting keeps its secret
    if _shown_to is None:
        names = (*MLFLOW_VARIABLES, *OTHER_MLFLOW_LOGINS)
        _of_user.update({name: os.environ.get(name) for name in names})
    _shown_to = uri
    _set({**dict.fromkeys(OTHER_MLFLOW_LOGINS), **mlflow_variables(value)})


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


def _made(folder: Path) -> str:
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
