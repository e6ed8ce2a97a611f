"""Unfinished files and folders that killed processes left in the workspace."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from patchline.pipeline.workspace.run_memory import live_runs

_UNFINISHED = (".building-*", ".*.part")
_OLD_SECONDS = 24 * 3600.0


def remove_leftovers(workspace: Path) -> list[Path]:
    """Remove and return unfinished files that are a day old, unless a flow run may be alive.

    Args:
        workspace: the folder `.patchline`.
    """
    if not all(record.is_dead for record in live_runs.records(workspace)):
        return []
    oldest = time.time() - _OLD_SECONDS
    left = [path for path in _unfinished(workspace) if _last_change(path) < oldest]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return left


def _unfinished(workspace: Path) -> Iterator[Path]:
    for pattern in _UNFINISHED:
        yield from workspace.rglob(pattern)
    for lock_file in (workspace / live_runs.FOLDER).glob("*.lock"):
        if not lock_file.with_suffix(".json").exists():
            yield lock_file


def _last_change(path: Path) -> float:
    """Return when a file or folder was last changed, in seconds since the epoch."""
    try:
        inside = path.rglob("*") if path.is_dir() else ()
        return max(float(each.lstat().st_mtime) for each in (path, *inside))
    except OSError:
        return time.time()  # it is being changed right now
