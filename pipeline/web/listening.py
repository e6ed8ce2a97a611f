"""Where a server listens, and what it says while it runs."""

from __future__ import annotations

import logging
import socket
import sys

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.config import ServingConfig

_BACKLOG = 1024


def listening_socket(config: ServingConfig) -> socket.socket:
    """Return a socket that listens where the settings say.

    Raises:
        ConfigError: if the address is taken, or is none of this machine.
    """
    is_ipv6 = ":" in config.host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"The server cannot listen on {config.host}, port {config.port} ({reason.lower()}). "
            "Choose another --port, or correct --host."
        ) from error


def url_of(config: ServingConfig, port: int) -> str:
    """Return the address of a server, as a browser on this machine opens it."""
    scheme = "https" if config.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - named
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def log_to_standard_error(*names: str) -> None:
    """Show what a server logs under some names while it runs, and under that of this room."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name in (*names, __name__.rpartition(".")[0]):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
