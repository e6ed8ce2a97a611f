"""Paths that begin with a user's folder: `~/photos`, `~ada/photos`."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.errors import ConfigError


def expanded(path: str | Path, setting: str) -> Path:
    """Return a path with the user's folder in place of `~`.

    Args:
        path: as it was given.
        setting: the key that it was given for.

    Raises:
        ConfigError: if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0][1:]
        raise ConfigError(
            f"{setting} is {path}, but there is no user '{user}'. Check the path."
        ) from error
