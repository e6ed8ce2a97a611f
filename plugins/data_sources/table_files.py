"""Find the files that a table names: by path, by file URL, or by a name without its suffix."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pipeline.plugin_api import IMAGE_SUFFIXES, DataError, walk_files
from plugins.data_sources.table_reading import shown

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FoundFiles(NamedTuple):
    """The files of a table."""

    root: Path
    """A folder that holds all of them."""
    paths: list[str | None]
    """Relative to the root, for each value; None if there is no such file."""
    note: str
    """How names that are not paths were found; may be empty."""


def find_files(table: Path, values: list[str], folder: Path) -> FoundFiles:
    """Return the file of each value of the image column.

    Args:
        table: the table.
        values: paths relative to the folder, absolute paths, `file://` URLs, or names of files
            below the folder, with or without their suffix.
        folder: usually that of the table.

    Raises:
        DataError: if a value is a web address, or may name several files.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for value in dict.fromkeys(values):
        file = _file_of(table, value, folder)
        if value and os.path.isfile(file):  # noqa: PTH113 - text is faster than a Path
            found[value] = file
        elif value:
            missing.append(value)
    searched = _below(table, missing, folder) if missing else {}
    note = _note(searched) if searched else ""
    for value, path in searched.items():
        found[value] = f"{folder}/{path}"
    root = _common_root(found.values(), folder)
    start = len(str(root).rstrip("/")) + 1
    paths = [found[value][start:] if value in found else None for value in values]
    return FoundFiles(root, paths, note)


def _file_of(table: Path, value: str, folder: Path) -> str:
    """Return the absolute path that a value states."""
    if _ADDRESS.match(value):
        parts = urlsplit(value)
        if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
            raise DataError(
                f"{table} names '{shown(value)}', and Patchline downloads no images. Download "
                "them, and give their paths."
            )
        value = url2pathname(parts.path)
    if "\0" in value:
        return ""
    return os.path.normpath(folder / value)


def _below(table: Path, values: list[str], folder: Path) -> dict[str, str]:
    """Return the file below the folder that ends with each value, with or without a suffix."""
    wanted = {value.replace("\\", "/").strip("/"): value for value in values}
    names = {PurePosixPath(name).name for name in wanted}
    candidates: dict[str, list[str]] = {}
    for file in walk_files(folder):
        path = PurePosixPath(file.path)
        stem = file.path[: -len(path.suffix)] if path.suffix.lower() in IMAGE_SUFFIXES else ""
        for text in (file.path, stem):
            if text.rpartition("/")[2] not in names:
                continue
            for tail in _tails(text):
                if tail in wanted:
                    candidates.setdefault(wanted[tail], []).append(file.path)
    return _unambiguous(table, candidates)


def _tails(path: str) -> Iterable[str]:
    """Yield a path, and what is left when its first folders are removed."""
    while path:
        yield path
        path = path.partition("/")[2]


def _unambiguous(table: Path, candidates: dict[str, list[str]]) -> dict[str, str]:
    """Choose the file in the folder with most other files, or that the table is named for."""
    folders = Counter(_folder(path) for paths in candidates.values() for path in set(paths))
    found = {}
    for value, paths in candidates.items():
        distinct = sorted(set(paths))
        most = max(folders[_folder(path)] for path in distinct)
        best = [path for path in distinct if folders[_folder(path)] == most]
        if len(best) > 1:
            named = [path for path in best if PurePosixPath(path).parts[0] in table.stem]
            best = named or best
        if len(best) > 1:
            raise DataError(
                f"'{shown(value)}' in {table} may be {best[0]} or {best[1]}. Set "
                "--data.image-folder to the folder of the images."
            )
        found[value] = best[0]
    return found


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _note(searched: dict[str, str]) -> str:
    value, path = next(iter(searched.items()))
    count = len(searched)
    return f"{count:,} image{'' if count == 1 else 's'} found by name: '{shown(value)}' is {path}"


def _common_root(files: Iterable[str], folder: Path) -> Path:
    start = f"{str(folder).rstrip('/')}/"
    outside = {os.path.dirname(file) for file in files if not file.startswith(start)}  # noqa: PTH120
    return Path(os.path.commonpath([str(folder), *outside])) if outside else folder
