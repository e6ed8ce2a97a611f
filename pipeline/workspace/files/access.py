"""Who may use a file or a folder: this user, or other users of the machine, too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from patchline.pipeline.errors import ConfigError

_ROOT = 0


def is_readable(path: Path) -> bool:
    """Return whether a file or folder exists and may be read; never raises."""
    if not os.access(path, os.R_OK):
        return False
    return path.is_file() or os.access(path, os.X_OK)


def check_own_folder(folder: Path, use: str, remedy: str) -> None:
    """Refuse a folder where another user may replace files, by links for example.

    The user's own group may write: on many systems nobody else is in it, and new folders have this
    mode. Nothing is checked on systems without such modes.

    Args:
        folder: the folder to check, which exists.
        use: what the folder is for, such as `--record`.
        remedy: what to do instead, without a full stop.

    Raises:
        ConfigError: if it belongs to another user, or others may write there.
    """
    if os.name != "posix":
        return
    status = folder.stat()
    mode, owners = stat.S_IMODE(status.st_mode), {folder.lstat().st_uid, status.st_uid}
    group_writes = mode & stat.S_IWGRP and status.st_gid != os.getegid()
    if owners - {os.geteuid(), _ROOT}:
        reason, chmod = "belongs to another user", ""
    elif mode & stat.S_IWOTH or group_writes:
        who = "every user" if mode & stat.S_IWOTH else "another group"
        reason = f"{who} of this machine may write to (mode {mode:04o})"
        chmod = f"run `chmod go-w {folder}`, or "
    else:
        return
    text = f"{chmod}{remedy}"
    raise ConfigError(
        f"{use} is {folder}, which {reason}, so that somebody else could replace its files. "
        f"{text[0].upper()}{text[1:]}."
    )


def check_no_link(path: Path, use: str) -> None:
    """Refuse a file or a folder that is a link: what is written there would be written elsewhere.

    Raises:
        ConfigError: if it is one.
    """
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a link to {path.readlink()}, and {use} follows none. Name the place that "
            "it leads to, or remove the link."
        )


def check_secret(file: Path, what: str) -> None:
    """Refuse a file with a secret that other users may read, by the rule of PostgreSQL.

    The group of a file of root's may read it, as that of a secret in a container.

    Args:
        file: the file to check, which exists.
        what: what the file is, such as `token file`.

    Raises:
        ConfigError: if others may read or write it.
    """
    status = file.stat()
    if os.name != "posix" or not stat.S_ISREG(status.st_mode):
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o027 if status.st_uid == _ROOT else 0o077):
        remedy = f"Run `chmod 600 {file}`"
        if status.st_uid == _ROOT != os.geteuid():
            remedy = "Mount it with mode 0440 (`defaultMode` of a Kubernetes secret), or copy it"
        raise ConfigError(
            f"The {what} {file} may be read or changed by other users (mode {mode:04o}). {remedy}, "
            "and replace the secret if one of them may have read it."
        )
