"""Prefect's own settings: the server that they name, and those of our servers and their clients.

Prefect reads the environment, `.env`, `prefect.toml` and `pyproject.toml` of the working directory,
and the active profile, in this order. They may have been written for another program.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from traceback import walk_tb
from typing import Any

from patchline.pipeline import quiet_libraries
from patchline.pipeline.errors import ConfigError, OrchestrationError, PipelineError, first_line
from patchline.pipeline.local_services import answers
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.workers.host import environment_variables
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workspace.files.atomic_files import full_disk

URL_VARIABLE = "PREFECT_API_URL"
_WHERE = "`prefect config view` shows where it is set"
_READERS = ("prefect.settings", "pydantic_settings", "dotenv")
"""Modules that read the settings."""
_ANSWER_SECONDS = 10.0
_OWN_CLIENT: dict[str, str] = {
    "api.enable_http2": "false",
    "api.tls_insecure_skip_verify": "false",
    "api.request_timeout": "60",
    "client.csrf_support_enabled": "true",
    "client.server_version_check_enabled": "true",
    "flows.default_retries": "0",
    "tasks.default_retries": "0",
    "tasks.refresh_cache": "false",
    "results.default_serializer": "json",
    "results.persist_by_default": "false",
}
"""What clients of our own servers need: Prefect's defaults, and results without pickle."""
_KEPT_BY_OWN_SERVERS = (
    "PREFECT_HOME",
    "PREFECT_API_DATABASE_",
    "PREFECT_SERVER_DATABASE_",
    "PREFECT_SERVER_ENCRYPTION_KEY",
    "PREFECT_SERVER_EVENTS_",
    "PREFECT_SERVER_SERVICES_",
)
"""Beginnings of the variables that our own servers read: they are meant for a server."""


def server_url() -> str | None:
    """Return the address of the server that the settings name, if they name one."""
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    return url.rstrip("/") if url else None


def check_server(url: str) -> None:
    """Check that a server which the settings name answers.

    Raises:
        ConfigError: if the address is none.
        OrchestrationError: if the server does not answer.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{url!r}, which Prefect's settings name, is not the address of an API. Correct "
            f"{URL_VARIABLE} to one such as http://127.0.0.1:4200/api; {_WHERE}."
        )
    environment_variables.check_proxy(url)
    if answers(f"{url}/health", _ANSWER_SECONDS):
        return
    reason = _reason()
    if reason:
        raise OrchestrationError(
            f"The Prefect server {redact_text(url)}, which Prefect's settings name, does not "
            f"answer ({reason}). Start it, or unset {URL_VARIABLE} to let Patchline start one; "
            f"{_WHERE}."
        )


def own_client(login: str) -> dict[str, Any]:
    """Return the settings of a client of our own servers, whatever the user's settings say.

    Args:
        login: user name and secret, as Prefect's setting `api.auth_string` takes them.
    """
    import certifi

    proof = f"Basic {base64.b64encode(login.encode()).decode()}"
    changed = {
        "api.auth_string": login,
        "api.ssl_cert_file": certifi.where(),
        # A header that the user has set cannot be removed, and would replace the login.
        "client.custom_headers": {"Authorization": proof},
    }
    return {**_OWN_CLIENT, **changed}


def own_client_environment(login: str) -> dict[str, str]:
    """Return the same as variables, which precede every file, for processes to start."""
    settings = own_client(login)
    given = {**settings, "client.custom_headers": json.dumps(settings["client.custom_headers"])}
    return {f"PREFECT_{name.replace('.', '_').upper()}": value for name, value in given.items()}


def own_server_environment() -> dict[str, str]:
    """Return the environment of a server of ours: without the settings of other servers.

    Such a server also runs in a folder of its own, so that it reads no file of the user's. The
    database, the services and the encryption key stay those that the user has configured.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PREFECT_")
        or name.startswith(_KEPT_BY_OWN_SERVERS)
        or name in quiet_libraries.NAMES
    }
    return {**kept, "PREFECT_PROFILES_PATH": os.devnull}


def sentence(error: BaseException) -> ConfigError | None:
    """Return Prefect's own message if an error comes from what reads its settings; else none."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    if not any(str(module).startswith(_READERS) for module in modules):
        return None
    told = " ".join(str(error).partition("For further information")[0].split())
    return ConfigError(
        f"Prefect cannot read its settings ({redact_text(told) or type(error).__name__}). Correct "
        f"the variables PREFECT_..., .env, prefect.toml or pyproject.toml in {Path.cwd()}, or "
        "profiles.toml in PREFECT_HOME (~/.prefect)."
    )


def explain_error(error: BaseException) -> PipelineError | None:
    """Return the error to report; None for one that neither Patchline nor the machine explains.

    What fails at run time does not say that the disk is full.
    """
    own = error if isinstance(error, PipelineError) else None
    if own and own.exit_code != PipelineError.exit_code:
        return own
    return full_disk(Path()) or own or sentence(error) or system_error(error)


def _reason() -> str:
    """Return why Prefect's own client gets no answer, by its certificates; empty if it gets one."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            failure = client.api_healthcheck()
    except Exception as error:  # noqa: BLE001 - the client fails in many ways to connect
        failure = error
    if failure is None:
        return ""
    return first_line(failure)
