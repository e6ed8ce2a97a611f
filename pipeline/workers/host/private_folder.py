"""A folder of one user below the temporary directory, where every user may create files.

Its name is predictable, so that all processes of a user find it. Somebody else may have created it
first, to read what is written there or to lead it elsewhere by a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from patchline.pipeline.errors import StorageError

_MODE = 0o700


def private_folder() -> Path:
    """Return the folder `patchline-UID`, which only this user can enter; create it if needed.

    Raises:
        StorageError: if something of that name is a link, no folder, or belongs to another user.
        OSError: if it cannot be created.
    """
    owner = str(os.getuid()) if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"patchline-{owner}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(_MODE)
    status = folder.lstat()
    if os.name == "posix":
        _check(folder, status)
        if stat.S_IMODE(status.st_mode) != _MODE:  # ours, by an unusual umask or by hand
            folder.chmod(_MODE)
    return folder


def _check(folder: Path, status: os.stat_result) -> None:
    """Check that a name in a shared directory is a folder of this user's that nobody prepared."""
    if stat.S_ISLNK(status.st_mode):
        fault = "is a link, which may lead anywhere"
    elif not stat.S_ISDIR(status.st_mode):
        fault = "is not a folder"
    elif status.st_uid != os.getuid():
        fault = f"belongs to another user (number {status.st_uid})"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fault = "may be written by other users"
    else:
        return
    raise StorageError(
        f"{folder} {fault}, so nothing is written there. Remove it, or set TMPDIR to a folder that "
        "only you can write to."
    )
