"""The Prefect server of a command: the user's own, that of `patchline up`, or a temporary one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from patchline.flows.notifications import events
from patchline.flows.prefect_api import prefect_settings
from patchline.flows.progress.progress_display import display
from patchline.pipeline import local_services
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.workers.host import environment_variables

if TYPE_CHECKING:
    from patchline.flows.prefect_api.temporary_server import TemporaryServer
    from patchline.pipeline.local_services import Services


_ANSWER_SECONDS = 10.0
_PATIENCE_SECONDS = 30.0
"""How long a server of `patchline up` may take to restart."""
_LOGIN_VARIABLE = local_services.PREFECT_VARIABLE
_WITHOUT_HEARTBEAT: Mapping[str, Any] = {"flows.heartbeat_frequency": None}
"""Nobody watches a temporary server, and a flow waits up to a second for the thread that beats."""
_server: TemporaryServer | None = None
_lasting: str | None = None


@contextmanager
def server() -> Iterator[None]:
    """Start a temporary server unless another one can be used; stop it at the end.

    Prefect's settings take precedence, then `patchline up`. A temporary server imports while the
    block does, starts with `use_database`, and `ready` waits for it.

    Raises:
        ConfigError: if Prefect's settings name a server by an address that is none.
        OrchestrationError: if the server that they name does not answer.
    """
    global _server, _lasting  # noqa: PLW0603 - one command has one server
    configured = prefect_settings.server_url()
    services = None if configured else local_services.find_running()
    if configured:
        prefect_settings.check_server(configured)
        _lasting = configured if _login(configured) else None
    elif services and _answers(services):
        _lasting = services.prefect_api_url
    else:
        if services:
            display().note(f"{_silent(services)} This command starts its own.")
        from patchline.flows.prefect_api.temporary_server import TemporaryServer

        _server = TemporaryServer(say=display().note)
    try:
        yield
    finally:
        if _server:
            _server.stop()
        _server = _lasting = None


def use_database() -> None:
    """Let a temporary server use its database, once nothing can be wrong with what the user gave.

    Raises:
        StorageError: if the folder of the database may not be written.
    """
    if _server:
        _server.use_database()


def is_temporary() -> bool:
    """Return whether the server ends with the command, so that links to it would break."""
    return _server is not None


@contextmanager
def ready() -> Iterator[None]:
    """Wait for the server and use it; Prefect's log lines are kept out of the terminal."""
    with _quiet_console():
        if _server:
            _server.wait()
        url = _server.url if _server else _lasting
        if url is None:
            yield
            return
        settings = _WITHOUT_HEARTBEAT if _server else None
        with _use_server(url, _server.login if _server else _login(url), settings):
            yield


@contextmanager
def connect() -> Iterator[str]:
    """Use the user's own server or that of `patchline up`, and yield the address of its API.

    `PREFECT_API_URL` and Prefect's settings in this process name it while the block runs.

    Raises:
        ConfigError: if Prefect's settings name a server by an address that is none.
        OrchestrationError: if there is no such server, or it does not answer.
    """
    with _quiet_console():
        configured = prefect_settings.server_url()
        if configured:
            prefect_settings.check_server(configured)
            login = _login(configured)
            with _use_server(configured, login) if login else nullcontext():
                yield configured
            return
        services = local_services.find_running()
        if services is None:
            raise OrchestrationError(
                "No Prefect server is running for this folder. Start the servers with "
                "`patchline up`."
            )
        if not wait_until(lambda: _answers(services), 1.0, _PATIENCE_SECONDS):
            raise OrchestrationError(f"{_silent(services)} Try again in a minute.")
        url = services.prefect_api_url
        with _use_server(url, _login(url)):
            yield url


def _login(url: str) -> dict[str, str]:
    """Return the variables that this process lacks to sign in to a server of `patchline up`."""
    from prefect.settings import get_current_settings

    login = local_services.prefect_login(url)
    auth = get_current_settings().api.auth_string
    has_it = auth is not None and auth.get_secret_value() in login.values()
    return {} if has_it else login


def _answers(services: Services) -> bool:
    return local_services.answers(f"{services.prefect_api_url}/health", _ANSWER_SECONDS)


def _silent(services: Services) -> str:
    log = local_services.logs_folder(services.folder) / "prefect.log"
    return (
        f"The Prefect server of `patchline up` at {services.prefect_url} does not answer (see "
        f"{log})."
    )


@contextmanager
def _use_server(
    url: str, login: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Make Prefect, in this process and the processes it starts, use the server and sign in.

    Args:
        url: the address of the server's API.
        login: the variables to sign in with.
        settings: further settings of Prefect for this process.
    """
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    variables = {prefect_settings.URL_VARIABLE: url, **login}
    updates: dict[Any, Any] = {PREFECT_API_URL: url, **(settings or {})}
    if login:
        updates |= prefect_settings.own_client(login[_LOGIN_VARIABLE])
    with environment_variables.restore_variables(variables):
        os.environ.update(variables)
        with temporary_settings(updates):
            try:
                yield
            finally:
                APILogHandler().flush()  # before the server stops
                events.flush()


@contextmanager
def _quiet_console() -> Iterator[None]:
    """Keep Prefect's log lines out of the terminal; the server still receives them."""
    from prefect.logging.handlers import PrefectConsoleHandler

    loggers = [logging.getLogger(name) for name in (None, "prefect", "patchline")]
    loggers += [
        logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.startswith("prefect")
    ]
    consoles = {
        handler
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, PrefectConsoleHandler)
    }
    levels = {handler: handler.level for handler in consoles}
    for handler in consoles:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)
