"""Find the files that a table names: by path, by file URL, or by a name without its suffix."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from patchline.plugin_api import IMAGE_SUFFIXES, DataError, walk_files
from patchline.plugins.data_sources.named_images import (
    ADDRESS,
    ImagePlaces,
    Readings,
    comparable,
    derive_stored_name,
    original_name,
    readings,
)
from patchline.plugins.data_sources.table_formats import format_cell

_DRIVE = re.compile(r"[A-Za-z]:/")


def find_files(table: Path, values: list[str], folder: Path) -> ImagePlaces:
    """Return the file of each value of the image column.

    Args:
        table: the table.
        values: paths relative to the folder, absolute paths, `file://` URLs, or names of files
            below the folder, with or without their suffix.
        folder: the folder that relative paths start from, usually that of the table.

    Raises:
        DataError: if a value is a web address, or may name several files.
    """
    files: dict[str, str] = {}
    missing: dict[str, Readings] = {}
    for value in dict.fromkeys(values):
        _check_address(table, value)
        at = _files_at(folder, [value])
        if not at and value.strip():
            meant = readings(value)
            at = _files_at(folder, meant.written[1:])
            if not at:
                missing[value] = meant
        if at:
            files[value] = at[0]
    named = set(files.values())
    searched = _search(table, {v: each.ends for v, each in missing.items()}, folder, named)
    rest = {value: each.decoded for value, each in missing.items() if value not in searched}
    for value, decoded in rest.items():
        if at := _files_at(folder, decoded):
            if len(at) > 1:
                raise DataError(
                    f"'{format_cell(value)}' in {table} may be {at[0]} or {at[1]}. Write which one."
                )
            files[value] = at[0]
    rest = {value: decoded for value, decoded in rest.items() if value not in files}
    searched |= _search(table, rest, folder, named)
    notes = []
    if searched:
        value, path = next(iter(searched.items()))
        count = f"{len(searched):,} image{'' if len(searched) == 1 else 's'}"
        notes.append(f"{count} found by name: '{format_cell(value)}' is {path}")
    for value, path in searched.items():
        files[value] = f"{folder}/{path}"
    root = _common_root(files.values(), folder)
    start = len(str(root).rstrip("/")) + 1
    paths = [files[value][start:] if value in files else None for value in values]
    return ImagePlaces(root, paths, notes)


def _check_address(table: Path, value: str) -> None:
    """Refuse an address that leads to another machine."""
    address = ADDRESS.match(value.strip())
    if address and address[0].lower() not in ("file://", "file://localhost"):
        raise DataError(
            f"{table} names '{format_cell(value)}', and Patchline downloads no images from web "
            "servers. Download them, and give their paths, or put them on an object store."
        )


def _files_at(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return those of some paths that are files."""
    sound = [path for path in paths if path.strip() and "\0" not in path]
    files = dict.fromkeys(os.path.normpath(os.path.join(folder, each)) for each in sound)  # noqa: PTH118
    return [each for each in files if os.path.isfile(each)]  # noqa: PTH113 - text is faster


def _search(
    table: Path, paths: dict[str, list[str]], folder: Path, named: Collection[str]
) -> dict[str, str]:
    """Return the file below the folder for the last path of each value, as far as there is one."""
    last = {value: each[-1] for value, each in paths.items() if each}
    found = _below(table, list(last.values()), folder, named) if last else {}
    found |= _find_uploaded(table, [path for path in last.values() if path not in found], folder)
    return {value: found[path] for value, path in last.items() if path in found}


def _below(table: Path, values: list[str], folder: Path, named: Collection[str]) -> dict[str, str]:
    """Return the file below the folder that ends with each value, with or without a suffix.

    If all values are absolute paths, which are those of another machine, the part is compared in
    which they differ. Upper and lower case, and the form of Unicode, matter only where several
    files fit.

    Args:
        table: the table, for messages.
        values: the values of the image column.
        folder: the folder to search.
        named: files that other values state; they are no answer.
    """
    by_name: dict[str, list[str]] = {}
    for value, relative in _relative(values, elsewhere=not named).items():
        by_name.setdefault(comparable(relative), []).append(value)
    names = {PurePosixPath(name).name for name in by_name}
    candidates: dict[str, list[str]] = {}
    for file in walk_files(folder):
        path = PurePosixPath(file.path)
        stem = file.path[: -len(path.suffix)] if path.suffix.lower() in IMAGE_SUFFIXES else ""
        for text in (file.path, stem):
            compared = comparable(text)
            if compared.rpartition("/")[2] not in names or f"{folder}/{file.path}" in named:
                continue
            for tail in _tails(compared):
                for value in by_name.get(tail, ()):
                    candidates.setdefault(value, []).append(file.path)
    exact = {
        value: [each for each in paths if _ends_with(each, value)] or paths
        for value, paths in candidates.items()
    }
    return _unambiguous(table, exact)


def _find_uploaded(table: Path, values: list[str], folder: Path) -> dict[str, str]:
    """Return the file below the folder that Label Studio has stored under each of these names."""
    originals: dict[str, list[str]] = {}
    for value in values:
        if original := original_name(value.strip().rpartition("/")[2]):
            originals.setdefault(original, []).append(value)
    candidates: dict[str, list[str]] = {}
    for file in walk_files(folder) if originals else ():
        for value in originals.get(derive_stored_name(PurePosixPath(file.path).name), ()):
            candidates.setdefault(value, []).append(file.path)
    return _unambiguous(table, candidates)


def _relative(values: list[str], *, elsewhere: bool) -> dict[str, str]:
    """Return paths with forward slashes, without the folder that all absolute ones start with.

    Args:
        values: the values of the image column.
        elsewhere: whether that folder is one of another machine, because no file is there.
    """
    paths = {value: value.strip().replace("\\", "/") for value in values}
    if elsewhere and all(path.startswith("/") or _DRIVE.match(path) for path in paths.values()):
        folders = [path.rpartition("/")[0] for path in paths.values()]
        try:
            common = os.path.commonpath(folders).rstrip("/")
        except ValueError:  # drives, and paths of another system
            common = ""
        paths = {value: path[len(common) + bool(common) :] for value, path in paths.items()}
    return {value: os.path.normpath(path).strip("/") for value, path in paths.items()}


def _ends_with(path: str, value: str) -> bool:
    stated = value.strip().replace("\\", "/").rpartition("/")[2]
    name = path.rpartition("/")[2]
    return stated in (name, PurePosixPath(name).stem)


def _tails(path: str) -> Iterable[str]:
    """Yield a path, and what is left when its first folders are removed."""
    while path:
        yield path
        path = path.partition("/")[2]


def _unambiguous(table: Path, candidates: dict[str, list[str]]) -> dict[str, str]:
    """Choose the file in the folder with most other files, or that the table is named for.

    Raises:
        DataError: if several files may be meant; also if a name is only in another folder than the
            one that was chosen for names that are in both: the file there may be another image.
    """
    folders = Counter(_folder(path) for paths in candidates.values() for path in set(paths))
    places: dict[str, str] = {}
    chosen: dict[str, str] = {}
    """Of the folders in which names were chosen from several files: such a name."""
    for value, paths in candidates.items():
        distinct = sorted(set(paths))
        most = max(folders[_folder(path)] for path in distinct)
        best = [path for path in distinct if folders[_folder(path)] == most]
        if len(best) > 1:
            named = [path for path in best if PurePosixPath(path).parts[0] in table.stem]
            best = named or best
        if len(best) > 1:
            raise DataError(
                f"'{format_cell(value)}' in {table} may be {best[0]} or {best[1]}. Set "
                "--data.image-folder to the folder of the images."
            )
        places[value] = best[0]
        if len({_folder(path) for path in distinct}) > 1:
            chosen[_folder(best[0])] = value
    for value, path in places.items():
        if chosen and _folder(path) not in chosen:
            folder, other = next(iter(chosen.items()))
            raise DataError(
                f"'{format_cell(value)}' in {table} is only found as {path}, which may be another "
                f"image: names such as '{format_cell(other)}' are there too, and were found in "
                f"'{folder or '.'}'. Set --data.image-folder to the folder of the images."
            )
    return places


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _common_root(files: Iterable[str], folder: Path) -> Path:
    start = f"{str(folder).rstrip('/')}/"
    outside = {os.path.dirname(file) for file in files if not file.startswith(start)}  # noqa: PTH120
    return Path(os.path.commonpath([str(folder), *outside])) if outside else folder
