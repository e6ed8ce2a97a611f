"""Walk a folder of images, and leave out the files that other programs put beside them.

What a pattern matches is skipped wherever images are listed, as hidden files are. A pattern without
a slash matches the name of a file or a folder at any depth, one that ends in a slash that of a
folder, and any other the path below the data's folder. `*`, `?` and `[…]` are wildcards; upper and
lower case do not matter.

Hidden files and folders are skipped, too. Links to folders are followed, but not in a circle; a
link to a file counts as a file. What MLflow stores beside the images is skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError

DEFAULT = "default"
"""Stands for the default patterns in a list of patterns."""
DEFAULT_PATTERNS = (
    "@eaDir/", "#recycle/", "#snapshot/", "@Recycle/", "@Recently-Snapshot/", "SYNOFILE_THUMB_*",
    "SYNOPHOTO_THUMB_*", "$RECYCLE.BIN/", "RECYCLER/", "System Volume Information/", "lost+found/",
    "Thumbs.db", "ehthumbs*.db", "desktop.ini", "__MACOSX/", "Icon\r", "Network Trash Folder/",
    "Temporary Items/", "__pycache__/",
)  # fmt: skip
"""Left by network storage (Synology, QNAP), Windows, Linux and macOS; those of names that begin
with a dot are skipped in any case."""
OnIgnored = Callable[[str], None]
"""Called with the path of each file that is skipped, or of each folder, which ends in a slash."""


class IgnoredFiles:
    """Tells which files and folders are skipped.

    Args:
        patterns: the patterns, as in the module docstring; `default` stands for the default ones.
    """

    def __init__(self, patterns: Sequence[str] = (DEFAULT,)) -> None:
        given: Iterable[str] = patterns
        if DEFAULT in patterns:
            given = (*DEFAULT_PATTERNS, *(each for each in patterns if each != DEFAULT))
        plain = [pattern.casefold() for pattern in given if pattern.strip("/")]
        names = [each.rstrip("/") for each in plain if "/" not in each.rstrip("/")]
        files = [each for each in plain if "/" not in each]
        self._folder = _any_of(names)
        self._file = _any_of(files)
        self._path = _any_of([each.strip("/") for each in plain if "/" in each.rstrip("/")])

    def skips(self, path: str, name: str, *, is_folder: bool) -> bool:
        """Return whether a file or a folder is skipped.

        Args:
            path: the path below the data's folder, with forward slashes.
            name: the last part of the path.
            is_folder: whether the path is that of a folder.
        """
        rule = self._folder if is_folder else self._file
        if rule is not None and rule(name.casefold()):
            return True
        return self._path is not None and bool(self._path(path.casefold()))

    def skipped_part(self, path: str) -> str:
        """Return the part of a file's path that is skipped, a folder with a slash; empty if none.

        `a/@eaDir/1.jpg/thumb.jpg` is skipped because of `a/@eaDir/`.
        """
        start = 0
        while (end := path.find("/", start)) >= 0:
            if self.skips(path[:end], path[start:end], is_folder=True):
                return path[: end + 1]
            start = end + 1
        return path if self.skips(path, path[start:], is_folder=False) else ""

    def remaining(self, paths: Iterable[str], on_ignored: OnIgnored | None = None) -> list[str]:
        """Return the paths of files that are not skipped; each skipped part is reported once."""
        folders: dict[str, str] = {}
        reported: set[str] = set()
        kept = []
        for path in paths:
            folder = path.rpartition("/")[0]
            part = folders.get(folder)
            if part is None:
                part = folders[folder] = self.skipped_part(f"{folder}/")[:-1] if folder else ""
            if not part and not self.skips(
                path, path[len(folder) + bool(folder) :], is_folder=False
            ):
                kept.append(path)
                continue
            skipped = f"{part}/" if part else path
            if on_ignored and skipped not in reported:
                reported.add(skipped)
                on_ignored(skipped)
        return kept


def _any_of(patterns: Sequence[str]) -> Callable[[str], re.Match[str] | None] | None:
    """Return a function that matches any of some patterns; None without patterns."""
    if not patterns:
        return None
    return re.compile("|".join(map(translate, dict.fromkeys(patterns)))).match


DEFAULT_IGNORED = IgnoredFiles()


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
    """Path relative to the top folder, with forward slashes."""
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
        ignored: what tells which files and folders are skipped.
        on_ignored: called for each of them.

    Raises:
        DataError: if a folder cannot be opened and there is no `on_unreadable`.
    """
    tell = on_unreadable or _refuse(top)
    skipping = _Skipping(ignored, on_ignored)
    first = _open_level(top, "", frozenset(), tell, skipping)
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
        below = _open_level(Path(entry.path), f"{path}/", level.above, tell, skipping)
        if below:
            stack.append(below)


def visible_folders(top: Path, ignored: IgnoredFiles = DEFAULT_IGNORED) -> list[str]:
    """Return the sorted names of the visible folders directly in a folder, including links.

    Args:
        top: the folder.
        ignored: what tells which of them are skipped.

    Raises:
        DataError: if the folder cannot be opened.
    """
    level = _open_level(top, "", frozenset(), _refuse(top), _Skipping(ignored))
    return [entry.name for entry in level.entries if _is_folder(entry)] if level else []


def _refuse(top: Path) -> OnUnreadable:
    def refuse(below: str, error: OSError) -> None:
        raise DataError(
            f"The folder {top / below} cannot be opened ({error.strerror}), so its images would be "
            "missing. Make it readable, or move it out of the data."
        ) from error

    return refuse


def _open_level(
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
