"""Whether a path still leads to the workspace that a process serves: a user may move the folder.

What a long-lived process writes by that path would otherwise create a new workspace in the old
place, where the user wants to move the folder back to.
"""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

_served: dict[Path, tuple[int, int]] = {}
"""Device and file number of each served workspace, by the path of its folder at the start."""


def remember_workspace(folder: Path) -> None:
    """Remember which workspace a path leads to now, if it leads to one.

    Args:
        folder: that holds the workspace.
    """
    if (identity := _identity(folder)) is not None:
        _served[folder] = identity


def is_workspace_there(folder: Path) -> bool:
    """Return whether a path leads to the workspace that it led to when it was remembered.

    A workspace that was not remembered is remembered by this call.
    """
    if folder not in _served:
        remember_workspace(folder)
    identity = _identity(folder)
    return identity is not None and identity == _served.get(folder)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = (folder / WORKSPACE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
