"""The files of the images that an export names: by path, by address, or by name.

Nothing is fetched: of an address, only the path counts, and it is searched for below a folder. The
file whose path ends like the address is its image.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from unicodedata import normalize
from urllib.parse import parse_qs, unquote, urlsplit

from patchline.plugin_api import DataError, ReadingRules, walk_files
from patchline.plugins.data_sources.cell_text import joined, shown
from patchline.plugins.data_sources.uploaded_names import original_name, stored_name

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
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
    if rules.root is None:
        return base
    folder = Path(rules.root).expanduser()
    inside = base / folder
    folder = inside if inside.is_dir() else folder
    if not folder.is_dir():
        raise DataError(
            f"data.root is {folder}, which is not a folder. Give the folder of the images."
        )
    return folder.resolve()


def find_images(file: Path, names: Sequence[str], root: Path, *, is_set: bool) -> ImagePlaces:
    """Return the file of each image.

    Args:
        file: the export, for messages.
        names: paths or addresses.
        root: the folder that they start from, or below which they are searched for.
        is_set: whether a person has named that folder.

    Raises:
        DataError: if a name may be one of several files, or more than a tenth is missing.
    """
    plain = {name: _path_of(name) for name in dict.fromkeys(names)}
    exact = {name: path for name, path in plain.items() if path and _is_file(root, path)}
    rest = {name: path for name, path in plain.items() if name not in exact}
    searched = _searched(file, rest, root) if any(rest.values()) else {}
    places = {**exact, **searched}
    missing = [name for name in plain if name not in places]
    if len(missing) > _MOST_MISSING * len(plain):
        remedy = "the folder of the images" if not is_set else "the folder that holds them"
        raise DataError(
            f"{len(missing):,} of {len(plain):,} images named in {file} do not exist below {root}: "
            f"{joined(missing)}. Nothing is fetched; set --data.root to {remedy}."
        )
    notes = []
    if searched:
        name, path = next(iter(searched.items()))
        count = len(searched)
        notes.append(
            f"{file.name}: {count:,} image{'' if count == 1 else 's'} found below {root.name} by "
            f"name: '{shown(name)}' is {shown(path)}"
        )
    return ImagePlaces(root, [places.get(name) for name in names], notes)


def _path_of(name: str) -> str:
    """Return the path in a name or an address, with forward slashes and without `..`."""
    if not name.strip() or "\0" in name:
        return ""
    text = name.strip().replace("\\", "/")
    if _ADDRESS.match(text) or text.startswith("/data/"):
        try:
            parts = urlsplit(text)
        except ValueError:
            return ""
        local = parse_qs(parts.query).get("d")  # as Label Studio serves local files
        text = local[0] if local else unquote(parts.path)
    pieces = [piece for piece in text.split("/") if piece not in ("", ".", "..")]
    return "/".join(pieces)


def _is_file(root: Path, path: str) -> bool:
    try:
        place = root / path
        return place.is_file() and place.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError):
        return False


def _plain(path: str) -> str:
    return normalize("NFC", path).casefold()


def _searched(file: Path, names: dict[str, str], root: Path) -> dict[str, str]:
    """Return the file whose path ends most like that of each name."""
    by_name: dict[str, list[str]] = defaultdict(list)
    by_stored: dict[str, list[str]] = defaultdict(list)
    for each in walk_files(root):
        file_name = PurePosixPath(each.path).name
        by_name[_plain(file_name)].append(each.path)
        by_stored[stored_name(file_name)].append(each.path)
    places = {}
    for name, path in names.items():
        last = path.rpartition("/")[2]
        candidates = by_name.get(_plain(last), [])
        if not candidates and (original := original_name(last)):
            candidates = by_stored.get(original, [])
        if not candidates:
            continue
        shared = {each: _same_end(each, path) for each in candidates}
        most = max(shared.values())
        best = sorted(each for each in candidates if shared[each] == most)
        if len(best) > 1:
            raise DataError(
                f"'{shown(name)}' in {file} may be {shown(best[0])} or {shown(best[1])}. Set "
                "--data.root to the folder of the images."
            )
        places[name] = best[0]
    return places


def _same_end(one: str, other: str) -> int:
    """Return how many of the last parts of two paths are equal."""
    count = 0
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    for first, second in pairs:
        if _plain(first) != _plain(second):
            break
        count += 1
    return count
