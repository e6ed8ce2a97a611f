"""Prefect's own settings: the server that they name, where they name it, and what is wrong there.

Prefect reads the environment, `.env`, `prefect.toml` and `pyproject.toml` of the working directory,
and the active profile, in this order. They may have been written for another program.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from patchline.pipeline import quiet_libraries
from patchline.pipeline.errors import ConfigError, OrchestrationError
from patchline.pipeline.host import proxies
from patchline.pipeline.local_services import answers
from patchline.pipeline.redaction import redacted

if TYPE_CHECKING:
    from pydantic import ValidationError

URL_VARIABLE = "PREFECT_API_URL"
_DOTENV, _TOML, _PYPROJECT = Path(".env"), Path("prefect.toml"), Path("pyproject.toml")
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
        OrchestrationError: if the server does not answer, with the place that names it.
    """
    if not url.startswith(("http://", "https://")):
        place, remedy = _naming_place()
        raise ConfigError(
            f"{url!r}, which {place} sets as the Prefect server, is not the address of an API. "
            f"Correct it to one such as http://127.0.0.1:4200/api, or {remedy}."
        )
    proxies.exempt(url)
    proxies.check(url, "websockets")
    if answers(f"{url}/health", _ANSWER_SECONDS):
        return
    reason = _reason()
    if reason:
        place, remedy = _naming_place()
        raise OrchestrationError(
            f"The Prefect server {redacted(url)}, which {place} names, does not answer "
            f"({reason}). Start it, or {remedy} to let Patchline start one."
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


def naming_place() -> str:
    """Return what names the server, such as `the file prefect.toml`."""
    return _naming_place()[0]


def sentence(error: BaseException) -> ConfigError | None:
    """Return what is wrong with the settings if that is what an error of Prefect's import means."""
    kind = type(error)
    if kind.__module__.startswith("pydantic_settings"):
        return ConfigError(f"{redacted(str(error))}. Correct the file, or move it away.")
    if kind.__name__ == "ValidationError" and hasattr(error, "errors"):
        return _wrong_value(error)
    return _unreadable_file(error) if _is_raised_by_settings(error) else None


def _is_raised_by_settings(error: BaseException) -> bool:
    """Return whether an error comes from what reads Prefect's settings."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(str(module).startswith(_READERS) for module in modules)


def _unreadable_file(error: BaseException) -> ConfigError | None:
    """Return which file of settings is damaged; none if there is no such file."""
    files = [file for file in (_DOTENV, _TOML, _PYPROJECT, _profiles()) if os.path.lexists(file)]
    reasons = {file: reason for file in files if (reason := _damage(file))}
    if reasons:
        file, reason = next(iter(reasons.items()))
        return ConfigError(
            f"Prefect's settings in {file.resolve()} cannot be read ({reason}). Correct the file, "
            "or move it away."
        )
    read = [str(file.resolve()) for file in files if file != _PYPROJECT or _mentions_prefect(file)]
    if not read:
        return None
    reason = redacted(str(error).partition("\n")[0][:200] or type(error).__name__)
    return ConfigError(
        f"Prefect cannot use the settings in {' or '.join(read)} ({reason}). Write each group of "
        "settings as a table, such as [api], or move the file away."
    )


def _profiles() -> Path:
    given = os.environ.get("PREFECT_PROFILES_PATH")
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect")
    return (Path(given) if given else home / "profiles.toml").expanduser()


def _damage(file: Path) -> str:
    """Return why a file of settings cannot be read at all; empty if it can."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            tomllib.loads(text)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeDecodeError:
        return "it is not text in UTF-8"
    except tomllib.TOMLDecodeError as error:
        return f"invalid TOML: {error}"
    return ""


def _mentions_prefect(file: Path) -> bool:
    table = _table(file).get("tool", {})
    return not isinstance(table, dict) or "prefect" in table


def _wrong_value(error: ValidationError | Any) -> ConfigError | None:
    """Return the sentence for a bad value; none for values of other programs."""
    loaded = sys.modules.get("prefect.settings.base")  # Prefect itself cannot be imported then
    if loaded is None:
        return None
    titles = {"Settings"}
    waiting: list[type[Any]] = [loaded.PrefectBaseSettings]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            titles.add(kind.__name__)
            waiting.append(kind)
    if error.title not in titles:
        return None
    first = error.errors()[0]
    setting = str(first["loc"][-1]) if first["loc"] else error.title
    value = redacted(repr(first.get("input")))
    return ConfigError(
        f"{_mentioning(setting)} sets Prefect's {setting} to {value}, which is invalid "
        f"({first['msg']}). Correct or remove it."
    )


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
    return redacted(str(failure).partition("\n")[0][:200] or type(failure).__name__)


def _naming_place() -> tuple[str, str]:
    """Return what names the server, and how to stop that."""
    if os.environ.get(URL_VARIABLE):
        return URL_VARIABLE, f"unset {URL_VARIABLE}"
    if _in_dotenv(URL_VARIABLE):
        shown = _DOTENV.resolve()
        return f"{URL_VARIABLE} in the file {shown}", f"remove it from {shown}"
    if _table(_TOML).get("api", {}).get("url"):
        shown = _TOML.resolve()
        return f"the file {shown}", f"remove `url` below [api] from {shown}"
    if _table(_PYPROJECT).get("tool", {}).get("prefect", {}).get("api", {}).get("url"):
        shown = _PYPROJECT.resolve()
        return f"the file {shown}", f"remove `url` below [tool.prefect.api] from {shown}"
    from prefect.context import get_settings_context
    from prefect.settings import get_current_settings

    name, file = get_settings_context().profile.name, get_current_settings().profiles_path
    return (
        f"Prefect's active profile {name!r} (file {file})",
        "choose another profile with `prefect profile use ephemeral`",
    )


def _mentioning(setting: str) -> str:
    """Return which variable or file holds a setting."""
    for name in os.environ:
        if name.startswith("PREFECT_") and name.endswith(setting.upper()):
            return name
    for file in (_DOTENV, _TOML, _PYPROJECT, _profiles()):
        with suppress(OSError, ValueError):
            if setting.lower() in file.read_text(encoding="utf-8").lower():
                return f"The file {file.resolve()}"
    return "A file of Prefect"


def _in_dotenv(variable: str) -> bool:
    from dotenv import dotenv_values

    return _DOTENV.is_file() and bool(dotenv_values(_DOTENV).get(variable))


def _table(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}
