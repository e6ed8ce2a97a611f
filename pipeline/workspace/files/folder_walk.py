"""Walk a folder of images, for data sources and watches.

Hidden files and folders are skipped, and those that other programs leave beside images (see
`ignored_files`). Links to folders are followed, but not in a circle; a link to a file counts as a
file. What MLflow stores beside the images is skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.ignored_files import (
    DEFAULT_IGNORED,
    IgnoredFiles,
    OnIgnored,
)

OnUnreadable = Callable[[str, OSError], None]
"""Called with a folder's path relative to the top (empty for the top itself) and the error."""

_STORE_NAMES = ("mlruns", "mlartifacts")
_DATABASE = re.compile(r"mlflow\.db(\.lock|-(wal|shm|journal))?")
_EXPERIMENT = re.compile(r"\d{1,20}")
_RUN = re.compile(r"[0-9a-f]{32}")
_BESIDE_EXPERIMENTS = ("models", "meta.yaml")
_BESIDE_RUNS = ("models", "traces", "datasets", "tags", "meta.yaml")


class FoundFile(NamedTuple):
    """A file below a folder."""

    path: str
    """Relative to the top folder, with forward slashes."""
    entry: os.DirEntry[str]


class _FolderLevel(NamedTuple):
    prefix: str
    entries: Iterator[os.DirEntry[str]]
    above: frozenset[tuple[int, int]]
    """Device and inode of this folder and its parents."""


class _Skipping(NamedTuple):
    """What is skipped, and who hears of it."""

    ignored: IgnoredFiles
    on_ignored: OnIgnored | None = None

    def skips(self, prefix: str, entry: os.DirEntry[str]) -> bool:
        path = prefix + entry.name
        is_folder = _is_folder(entry)
        if not self.ignored.skips(path, entry.name, is_folder=is_folder):
            return False
        if self.on_ignored:
            self.on_ignored(f"{path}/" if is_folder else path)
        return True


def walk_files(
    top: Path,
    on_unreadable: OnUnreadable | None = None,
    ignored: IgnoredFiles = DEFAULT_IGNORED,
    on_ignored: OnIgnored | None = None,
) -> Iterator[FoundFile]:
    """Yield every visible file below a folder, sorted by name within each folder.

    Args:
        top: the folder.
        on_unreadable: called for each folder that cannot be opened; without it, such a folder is
            an error. A folder that is removed during the walk is no error, unless it is the top.
        ignored: tells which files and folders are skipped.
        on_ignored: called for each of them.

    Raises:
        DataError: if a folder cannot be opened and there is no `on_unreadable`.
    """
    tell = on_unreadable or _refuse(top)
    skipping = _Skipping(ignored, on_ignored)
    first = _opened(top, "", frozenset(), tell, skipping)
    stack = [first] if first else []
    while stack:
        level = stack[-1]
        entry = next(level.entries, None)
        if entry is None:
            stack.pop()
            continue
        path = level.prefix + entry.name
        if not _is_folder(entry):
            yield FoundFile(path, entry)
            continue
        below = _opened(Path(entry.path), f"{path}/", level.above, tell, skipping)
        if below:
            stack.append(below)


def visible_folders(top: Path, ignored: IgnoredFiles = DEFAULT_IGNORED) -> list[str]:
    """Return the sorted names of the visible folders directly in a folder, including links.

    Args:
        top: the folder.
        ignored: tells which of them are skipped.

    Raises:
        DataError: if the folder cannot be opened.
    """
    level = _opened(top, "", frozenset(), _refuse(top), _Skipping(ignored))
    return [entry.name for entry in level.entries if _is_folder(entry)] if level else []


def _refuse(top: Path) -> OnUnreadable:
    def refuse(below: str, error: OSError) -> None:
        raise DataError(
            f"The folder {top / below} cannot be opened ({error.strerror}), so its images would be "
            "missing. Make it readable, or move it out of the data."
        ) from error

    return refuse


def _opened(
    folder: Path,
    prefix: str,
    above: frozenset[tuple[int, int]],
    tell: OnUnreadable,
    skipping: _Skipping,
) -> _FolderLevel | None:
    """Return a folder's visible entries; none if a link leads back to one of its parents."""
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return None
        with os.scandir(folder) as listed:
            entries = [entry for entry in listed if not entry.name.startswith(".")]
    except OSError as error:
        if not prefix or not isinstance(error, FileNotFoundError):
            tell(prefix.rstrip("/"), error)
        return None
    if not prefix:
        entries = [entry for entry in entries if not _is_of_mlflow(entry)]
    entries = [entry for entry in entries if not skipping.skips(prefix, entry)]
    entries.sort(key=lambda entry: entry.name)
    return _FolderLevel(prefix, iter(entries), above | {identity})


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_of_mlflow(entry: os.DirEntry[str]) -> bool:
    """Return whether MLflow wrote an entry beside the images: its artifacts or its database."""
    if not _is_folder(entry):
        return bool(_DATABASE.fullmatch(entry.name))
    try:
        return _holds_artifacts(Path(entry.path))
    except OSError:
        return False  # the walk will report that it cannot be opened


def _holds_artifacts(folder: Path) -> bool:
    """Return whether a folder holds nothing but MLflow's `EXPERIMENT/RUN/…`.

    A folder with MLflow's usual name may have no runs; if it contains an image, it is a class.
    """
    runs = 0
    for name in _visible_names(folder):
        if name in _BESIDE_EXPERIMENTS:
            continue
        if not _EXPERIMENT.fullmatch(name) or not (folder / name).is_dir():
            return False
        for inner in _visible_names(folder / name):
            if _RUN.fullmatch(inner):
                runs += 1
            elif inner not in _BESIDE_RUNS:
                return False
    return runs > 0 or folder.name in _STORE_NAMES


def _visible_names(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name
