"""Where a server listens, its certificate if it speaks HTTPS, and what it says while it runs."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from pathlib import Path

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.workspace.files.access import check_secret

_BACKLOG = 1024


def open_listening_socket(config: ServingConfig) -> socket.socket:
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


logger = logging.getLogger(__name__)

_State = tuple[tuple[int, int, int] | None, ...]
"""Of both files: time of the last change, size and number; None for one that is not there."""


def check_certificate(config: ServingConfig) -> None:
    """Check that the certificate and its key can be used.

    Raises:
        ConfigError: if one is missing, they do not belong together, or others may read the key.
    """
    if config.tls_certificate is None and config.tls_key is None:
        return
    if config.tls_certificate is None or config.tls_key is None:
        raise ConfigError("HTTPS needs both --tls-certificate and --tls-key. Give both files.")
    try:
        check_secret(config.tls_key, "key")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.tls_certificate, config.tls_key, password=_no_password
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"The certificate {config.tls_certificate} cannot be used with the key "
            f"{config.tls_key} ({reason[:200]}). Give a certificate and its key as PEM files."
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody can enter its password here")


class CertificateRenewal:
    """Reads the certificate and its key again when one of the files has changed.

    A renewal writes two files, so it may be seen when only one is new. Those do not belong
    together; they are tried again at each check, until they do.

    Args:
        config: the server's settings, which name both files.
        used: the TLS context that encrypts new connections.
    """

    def __init__(self, config: ServingConfig, used: ssl.SSLContext) -> None:
        self._config = config
        self._context = used
        self._used = self._warned_of = self._state()

    def check(self) -> None:
        """Use the files for new connections if they have changed."""
        certificate, key = self._config.tls_certificate, self._config.tls_key
        state = self._state()
        if state == self._used or certificate is None or key is None:
            return
        try:
            check_certificate(self._config)
            self._context.load_cert_chain(certificate, key, password=_no_password)
        except (ConfigError, OSError, ValueError) as error:
            if state != self._warned_of:
                self._warned_of = state
                logger.warning("The renewed certificate is not used: %s", error)
        else:
            self._used = state
            logger.info("The renewed certificate is used for new connections.")

    def _state(self) -> _State:
        files = self._config.tls_certificate, self._config.tls_key
        return tuple(None if file is None else _read_state(file) for file in files)


def _read_state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
