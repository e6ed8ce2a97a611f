"""Give a command a Prefect server: the one that is configured, or a temporary one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.temporary_server import TemporaryServer


_server: TemporaryServer | None = None


@contextmanager
def server() -> Iterator[None]:
    """Start a temporary server unless Prefect is configured to use another; stop it in the end.

    It starts while the block imports what it needs; `ready` waits for it.
    """
    global _server  # noqa: PLW0603 - one command has one server
    from prefect.settings import get_current_settings

    from flows.temporary_server import TemporaryServer

    if get_current_settings().api.url:
        yield
        return
    _server = TemporaryServer()
    try:
        yield
    finally:
        _server.stop()
        _server = None


@contextmanager
def ready() -> Iterator[None]:
    """Wait for the server and use it; Prefect's own words stay out of the terminal."""
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with _quiet_console():
        if _server is None:
            yield
            return
        _server.wait()
        os.environ["PREFECT_API_URL"] = _server.url
        try:
            with temporary_settings({PREFECT_API_URL: _server.url}):
                try:
                    yield
                finally:
                    APILogHandler().flush()  # before the server goes
        finally:
            del os.environ["PREFECT_API_URL"]


@contextmanager
def _quiet_console() -> Iterator[None]:
    """Keep Prefect's log lines out of the terminal; they still reach the server."""
    from prefect.logging.handlers import PrefectConsoleHandler

    loggers = [logging.getLogger(name) for name in (None, "prefect", "pipeline")]
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
