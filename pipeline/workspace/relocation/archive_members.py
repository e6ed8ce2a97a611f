"""What belongs to a workspace's archive, and the list with which each member is checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.safe_paths import unsafe_reason
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.tracking.tracking_store import ARTIFACTS, DATABASE

LIST = "workspace-export.json"
"""The last member of an archive: what it holds, with the digest of every other member."""
FORMAT = 1
PREFECT = f"{WORKSPACE}/prefect.db"
DATABASES = (DATABASE, PREFECT)
CACHES = frozenset(
    {
        *("prepared", "scans", "ingestions", "sources", "near_duplicates"),
        *("features", "teacher_predictions"),
    }
)
"""Folders that the next run makes again from the images."""
_OF_PROCESSES = frozenset({"live", "locks", "services"})
"""Folders about running processes; `services` holds the secret of the local servers."""
_LEFT_OUT = re.compile(
    r".*\.(lock|part|log|key)|.*\.db(-wal|-shm|-journal)?|\.building-.*|\.locks|\.artifact\..*"
)
_TOPS = frozenset({DATABASE, ARTIFACTS, str(WORKSPACE)})


class Member(FrozenModel):
    """One file of an archive."""

    bytes: int
    sha256: str


class Contents(FrozenModel):
    """What an archive holds."""

    format: int = FORMAT
    patchline: str
    """The version that wrote it."""
    created: str
    """ISO 8601, UTC."""
    folder: str
    """The folder that was exported."""
    runs: int
    """In the MLflow database."""
    models: int
    """Registered models."""
    caches: bool
    """Whether it holds what the next run makes again from the images."""
    outside: int
    """Artifact locations that are not in the folder, and so not in the archive."""
    members: dict[str, Member]
    """By path."""


def files(folder: Path, *, caches: bool) -> Iterator[str]:
    """Yield the paths of a workspace's files that belong to its archive, without the databases.

    Args:
        folder: holds the workspace.
        caches: whether to include what the next run makes again from the images.
    """
    left_out = _OF_PROCESSES if caches else _OF_PROCESSES | CACHES
    for top in (WORKSPACE, Path(ARTIFACTS)):
        for place, folders, names in os.walk(folder / top):
            inside = Path(place).relative_to(folder)
            if inside == WORKSPACE:
                folders[:] = [name for name in folders if name not in left_out]
            folders[:] = sorted(name for name in folders if not _LEFT_OUT.fullmatch(name))
            for name in sorted(names):
                file = folder / inside / name
                artifact = inside.parts[0] == ARTIFACTS
                kept = not _LEFT_OUT.fullmatch(name) or (artifact and name[0] != ".")
                if kept and file.is_file() and not file.is_symlink():
                    yield (inside / name).as_posix()


def member_refusal(path: str) -> str | None:
    """Return why a member of an archive may not become a file; none if it may."""
    if reason := unsafe_reason(path):
        return f"its path {reason}"
    if path.partition("/")[0] not in _TOPS and path != LIST:
        return "it does not belong to a workspace"
    return None
