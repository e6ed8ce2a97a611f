"""The token that clients must send, and when a server needs one."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.workspace.files.access import check_secret

TOKEN_VARIABLE = "PATCHLINE_SERVE_TOKEN"  # noqa: S105 - the name of the variable
_SHORTEST_TOKEN = 16


def given_token(file: Path | None) -> str | None:
    """Return the token in a file, or in the environment, which no other process inherits then.

    Raises:
        ConfigError: if the file cannot be read, others may read it, or the token is too short.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    place = TOKEN_VARIABLE
    if file is not None:
        place = str(file)
        try:
            check_secret(file, "token file")
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(
                f"The token file {file} cannot be read ({reason}). Give a text file whose first "
                "line is the token."
            ) from error
        given = lines[0] if lines else ""
    if given is None:
        return None
    token = given.strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or " " in token:
        raise ConfigError(
            f"The token in {place} must have at least {_SHORTEST_TOKEN} characters, without spaces "
            "or accents. `openssl rand -hex 32` makes one."
        )
    return token


def check_access(config: ServingConfig, use: str = "use the model") -> None:
    """Check that a server which others reach has a token.

    Args:
        config: of the server.
        use: what others could do with it.

    Raises:
        ConfigError: if it has none, or its root path is no path.
    """
    if config.root_path and (not config.root_path.startswith("/") or config.root_path[-1] == "/"):
        raise ConfigError(
            f"--root-path {config.root_path} must begin with a slash and end without one, such as "
            "/flowers."
        )
    if config.token is None and not is_loopback(config.host):
        raise ConfigError(
            f"--host {config.host} lets other machines {use}, which needs a token. Add "
            f"--token-file FILE, or set {TOKEN_VARIABLE}."
        )


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
