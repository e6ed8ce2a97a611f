"""The heartbeat of a process without a port: a file whose content changes while all is well."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from patchline.pipeline.local_services import services_folder
from patchline.pipeline.workers.supervision import served_workspace
from patchline.pipeline.workspace.files.workspace_folder import make_folder

_beats = itertools.count()


def beat(folder: Path, name: str) -> None:
    """Record that this process is well; nothing while the folder is not in its place.

    Args:
        folder: the working directory of the services.
        name: of the process.
    """
    if not served_workspace.is_workspace_there(folder):
        return
    file = _beat_file(folder, name)
    make_folder(file.parent)
    file.write_text(f"{os.getpid()} {next(_beats)}", encoding="utf-8")


def is_beating(folder: Path, name: str) -> Callable[[], bool]:
    """Return a function that returns whether the process has beaten since the last call."""
    file = _beat_file(folder, name)
    seen = _beat_content(file)

    def has_beaten() -> bool:
        nonlocal seen
        before, seen = seen, _beat_content(file)
        return seen != before

    return has_beaten


def _beat_file(folder: Path, name: str) -> Path:
    return services_folder(folder) / "beats" / name


def _beat_content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
