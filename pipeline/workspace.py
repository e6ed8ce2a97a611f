"""The folder `.patchline`, in which Patchline keeps what is for nobody but the user.

It holds databases, logs and addresses that may contain secrets. So its mode is 0700 whatever the
umask says, and one that was made wider is narrowed by the next command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

WORKSPACE = Path(".patchline")
"""Of the working directory; `WORKSPACE.resolve()` is its place."""
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_OTHERS = 0o077
_told: set[Path] = set()


def make_folder(folder: Path) -> None:
    """Make a folder with its parents unless it is there; a workspace among them is private.

    Raises:
        OSError: if it cannot be made.
    """
    for place in (folder, *folder.parents):
        if place.name == WORKSPACE.name:
            _make_private(place)
            break
    folder.mkdir(parents=True, exist_ok=True)


def tighten() -> None:
    """Narrow the mode of the working directory's workspace, if there is one."""
    if WORKSPACE.is_dir():
        _narrow(WORKSPACE, _FOLDER_MODE)


def make_private_file(file: Path) -> None:
    """Make an empty file that only its owner reads and writes; narrow one that is there.

    Raises:
        OSError: if it cannot be made.
    """
    make_folder(file.parent)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, _FILE_MODE))
    _narrow(file, _FILE_MODE)


def _make_private(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.mkdir(_FOLDER_MODE)
    _narrow(place, _FOLDER_MODE)


def _narrow(place: Path, mode: int) -> None:
    """Give a place its mode where others may enter it, or a strange umask kept its owner out."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        if stat.S_IMODE(place.stat().st_mode) & (_OTHERS | mode) != mode:
            with contextlib.suppress(OSError):  # another's, or a file system without modes
                place.chmod(mode)
            found = stat.S_IMODE(place.stat().st_mode)
            if found & _OTHERS:
                _tell(place, found)


def _tell(place: Path, found: int) -> None:
    if place.resolve() not in _told:
        _told.add(place.resolve())
        logger.warning(
            "Other users of this machine may read %s: its mode is %04o and cannot be changed to "
            "0700 here. Work on a file system that keeps modes, in a folder of your own.",
            place,
            found,
        )
