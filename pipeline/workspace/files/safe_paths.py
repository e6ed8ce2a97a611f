"""Paths that come from elsewhere: an object of a store, a record, an archive, a job of a machine.

`safe_join` is the one way in which such a path becomes a file of this machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from patchline.pipeline.errors import DataError

_DRIVE = re.compile(r"[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")
_LONGEST_NAME, _LONGEST_PATH = 255, 4096
"""Bytes that file systems of Linux and macOS take."""
_SHOWN = 200


def safe_join(folder: Path, path: str, source: object) -> Path:
    """Return the file that a relative path names below a folder.

    Args:
        folder: need not exist.
        path: from elsewhere, with forward slashes.
        source: where it comes from, for the message.

    Raises:
        DataError: if it leads out of the folder, also through a link, or no file can have it.
    """
    reason = unsafe_reason(path) or _length_reason(path)
    if not reason:
        file = folder / path
        if _is_below(os.path.realpath(file), os.path.realpath(folder)):
            return file
        reason = f"leads out of {folder} through a link"
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    raise DataError(
        f"{source} names the path {shown!r}, which {reason}. Nothing was written there. Remove it, "
        "and check who can write to its source."
    )


def unsafe_reason(path: str) -> str:
    """Return why a relative path is not one that stays in its folder; empty if it is.

    A backslash separates names on Windows, so it is taken for a separator, too.
    """
    parts = _SEPARATORS.split(path)
    if ".." in parts:
        return "leads out of its folder"
    if path.startswith(("/", "\\")):
        return "is absolute"
    if _DRIVE.match(path):
        return "begins like a drive of Windows"
    if any(part in ("", ".") for part in parts):
        return "has a part that is empty or '.'"
    if "\0" in path:
        return "has a null byte"
    return ""


def _length_reason(path: str) -> str:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME:
        return f"is longer than a file system takes ({_LONGEST_NAME} bytes for each name in it)"
    return ""


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")
