"""The files of the images that an export names: by path, by address, or by name.

Nothing is fetched: of an address, only the path counts, and it is searched for below a folder. The
file whose path ends like the address is its image.

A name is first what is written. It is decoded, once, only if nothing has that name.

Label Studio stores uploaded images under names of its own: `my photo (1).jpg` becomes
`0a1b2c3d-my_photo_1.jpg`: spaces are underscores, and what is neither a letter, a digit, `-`, `_`
nor `.` is left out (Django's `get_valid_filename`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from unicodedata import normalize
from urllib.parse import unquote, unquote_plus

from patchline.plugin_api import DataError, ReadingRules, walk_files
from patchline.plugins.data_sources.source_files import folder_of
from patchline.plugins.data_sources.table_formats import format_cell, join_names

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")
_LOCAL = "?d="
"""What Label Studio writes before the path of a local file."""


class Readings(NamedTuple):
    """The paths that a name may mean, with forward slashes, the likeliest first."""

    written: list[str]
    ends: list[str]
    """Those that another path may end with."""
    decoded: list[str]


def readings(name: str) -> Readings:
    """Return what a name may mean."""
    plain = name.strip()
    _, local, place = plain.rpartition(_LOCAL)
    address = ADDRESS.match(plain)
    if local:
        ends = [place]
    elif address or plain.startswith("/data/"):
        path = plain[address.end() :] if address else plain
        bare = re.split("[?#]", path, maxsplit=1)[0]
        ends = [bare] if "/" in path[len(bare) :] else [path, bare]
    else:
        ends = [plain.replace("\\", "/")]
    written = _distinct([name, plain, *ends])
    decoded = _distinct([*map(unquote, ends), *([unquote_plus(place)] if local else [])])
    return Readings(written, _distinct(ends), [each for each in decoded if each not in written])


def _distinct(paths: list[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if path.strip() and "\0" not in path]


_UPLOADED = re.compile(r"[0-9a-f]{8}-(?P<name>.+)")
_LEFT_OUT = re.compile(r"[^-\w.]")


def original_name(name: str) -> str:
    """Return the part of a stored file name that its image had, made safe; empty if it has none."""
    uploaded = _UPLOADED.fullmatch(name)
    return derive_stored_name(uploaded["name"]) if uploaded else ""


def derive_stored_name(name: str) -> str:
    """Return what becomes of the name of a file that is uploaded, without upper case."""
    safe = normalize("NFC", name).strip().replace(" ", "_")
    return _LEFT_OUT.sub("", safe).casefold()


_MOST_MISSING = 0.1


class ImagePlaces(NamedTuple):
    """The files of images."""

    root: Path
    paths: list[str | None]
    """Relative to the root, for each name; None if there is no such file."""
    notes: list[str]


def image_root(base: Path, rules: ReadingRules) -> Path:
    """Return the folder of the images: `data.root`, or that of the export.

    Raises:
        DataError: if it is no folder.
    """
    return folder_of(base, rules.root, "data.root", "the folder of the images")


def find_images(file: Path, names: Sequence[str], root: Path, *, is_set: bool) -> ImagePlaces:
    """Return the file of each image.

    Args:
        file: the export, for messages.
        names: the paths or addresses of the images.
        root: the folder that they start from, or below which they are searched for.
        is_set: whether a person has named that folder.

    Raises:
        DataError: if a name may be one of several files, or more than a tenth is missing.
    """
    distinct, below = list(dict.fromkeys(names)), _Below(file, root)
    places, searched = dict[str, str](), dict[str, str]()
    for name in distinct:
        written, ends, decoded = readings(name)
        if exact := _files(root, written):
            places[name] = exact[0]
        elif (
            found := below.like(name, ends)[:1]
            or _files(root, decoded)
            or below.like(name, decoded)
        ):
            if len(found) > 1:
                raise below.ambiguous(name, found)
            places[name] = searched[name] = found[0]
    missing = [name for name in distinct if name not in places]
    if len(missing) > _MOST_MISSING * len(distinct):
        remedy = "the folder of the images" if not is_set else "the folder that holds them"
        raise DataError(
            f"{len(missing):,} of {len(distinct):,} images named in {file} do not exist below "
            f"{root}: {join_names(missing)}. Nothing is fetched; set --data.root to {remedy}."
        )
    notes = []
    if searched:
        name, path = next(iter(searched.items()))
        count = len(searched)
        notes.append(
            f"{file.name}: {count:,} image{'' if count == 1 else 's'} found below {root.name} by "
            f"name: '{format_cell(name)}' is {format_cell(path)}"
        )
    return ImagePlaces(root, [places.get(name) for name in names], notes)


def _files(root: Path, paths: Sequence[str]) -> list[str]:
    """Return those of some paths that are files below a folder; `..` leads nowhere."""
    pieces = [[part for part in path.split("/") if part not in ("", ".", "..")] for path in paths]
    plain = dict.fromkeys("/".join(each) for each in pieces if each)
    return [path for path in plain if _is_file(root, path)]


def _is_file(root: Path, path: str) -> bool:
    try:
        place = root / path
        return place.is_file() and place.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError):
        return False


def comparable(path: str) -> str:
    """Return what paths have in common that differ in case or in the form of Unicode."""
    return path.casefold() if path.isascii() else normalize("NFC", path).casefold()


class _Below:
    """The files below a folder, by name.

    Args:
        file: the export, for messages.
        root: the folder.
    """

    def __init__(self, file: Path, root: Path) -> None:
        self._file, self._root = file, root

    @cached_property
    def _by_name(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """All paths, by name and by what Label Studio makes of the name."""
        by_name: dict[str, list[str]] = defaultdict(list)
        by_stored: dict[str, list[str]] = defaultdict(list)
        for each in walk_files(self._root):
            name = PurePosixPath(each.path).name
            by_name[comparable(name)].append(each.path)
            by_stored[derive_stored_name(name)].append(each.path)
        return by_name, by_stored

    def like(self, name: str, paths: Sequence[str]) -> list[str]:
        """Return the file whose path ends most like each of these paths, if there is one.

        Raises:
            DataError: if several do.
        """
        found: dict[str, None] = {}
        for path in paths:
            by_name, by_stored = self._by_name
            last = path.rpartition("/")[2]
            candidates = by_name.get(comparable(last), [])
            if not candidates and (original := original_name(last)):
                candidates = by_stored.get(original, [])
            shared = {each: _same_end(each, path) for each in candidates}
            best = sorted(each for each in candidates if shared[each] == max(shared.values()))
            if len(best) > 1:
                raise self.ambiguous(name, best)
            found |= dict.fromkeys(best)
        return list(found)

    def ambiguous(self, name: str, paths: Sequence[str]) -> DataError:
        """Return the question which file is meant."""
        return DataError(
            f"'{format_cell(name)}' in {self._file} may be {format_cell(paths[0])} or "
            f"{format_cell(paths[1])}. Set --data.root to the folder of the images, or rename one "
            "of them."
        )


def _same_end(one: str, other: str) -> int:
    """Return how many of the last parts of two paths are equal."""
    count = 0
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    for first, second in pairs:
        if comparable(first) != comparable(second):
            break
        count += 1
    return count
