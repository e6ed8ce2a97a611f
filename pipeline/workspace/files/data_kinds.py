"""What kind of data a path holds: a folder of images, an archive, a table or shards."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workspace.files.data_names import (
    ARCHIVE_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    split_named,
)
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED
from patchline.pipeline.workspace.files.tar_archive import shards_in

DataKind = Literal["folder", "archive", "table", "shards", "coco", "label_studio", "unknown"]
COCO_NAME = "_annotations.coco.json"
"""The file that Roboflow writes into the folder of each split."""
METADATA_NAMES = (*("metadata.csv", "metadata.jsonl", "metadata.parquet", "_classes.csv"),)
"""Tables of the images beside them, as the library `datasets` and Roboflow write them."""
_FEWEST_CLASSES = 2
_LOOKED_AT = 1 << 16
"""Bytes at the beginning of a JSON file that tell its kind."""


class FoundKind(NamedTuple):
    """What a path holds."""

    kind: DataKind
    """Kind of the data; unknown if it cannot be read."""
    reason: str = ""
    """Why it is unknown, as a sentence."""


def data_kind(path: str) -> DataKind:
    """Return what a path is; see `find_kind`."""
    return find_kind(path).kind


def find_kind(path: str) -> FoundKind:
    """Return what a path is; anything but an archive, a table or an export counts as a folder.

    A folder of Parquet files, as data-set hubs export a table in parts, counts as a table. Tar
    files of samples, alone or in a folder, are shards. What cannot be read is unknown; a path where
    nothing is has the kind of its name.
    """
    place = Path(path)
    name = place.name.lower()
    may_exist = _can_be_a_path(place)
    try:
        with _read(place):
            if may_exist and _is_folder(place):
                return FoundKind(_folder_kind(place))
            if may_exist and shards_in(place):
                return FoundKind("shards")
            if name.endswith(ARCHIVE_SUFFIXES):
                return FoundKind("archive")
            if may_exist and name.endswith(".json"):
                return FoundKind(_json_kind(place))
    except DataError as error:
        return FoundKind("unknown", str(error))
    return FoundKind("table" if name.endswith(TABLE_SUFFIXES) else "folder")


@contextmanager
def _read(place: Path) -> Iterator[None]:
    """Turn what fails while a path is read into one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        at = getattr(error, "filename", None) or place
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{visible(str(at))} cannot be read ({reason}). Check the path and its permissions."
        ) from error


def _can_be_a_path(place: Path) -> bool:
    """Return whether there can be a file of a name: not with a null character, or if too long."""
    try:
        place.stat()
    except ValueError:
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def _is_folder(place: Path) -> bool:
    """Return whether a path is a folder; `Path.is_dir` says no where it may not look.

    Raises:
        OSError: if it may not look there.
    """
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _folder_kind(folder: Path) -> DataKind:
    if table_parts(folder):
        return "table"
    if shards_in(folder):
        return "shards"
    if coco_files(folder):
        return "coco"
    return "table" if metadata_files(folder) and not _has_class_folders(folder) else "folder"


def _json_kind(file: Path) -> DataKind:
    """Return what a JSON file is, as its beginning tells; COCO JSON if there is none."""
    try:
        with file.open("rb") as opened:
            start = opened.read(_LOOKED_AT).removeprefix(b"\xef\xbb\xbf").lstrip()
    except FileNotFoundError:  # whoever reads it says so
        return "coco"
    if not start.startswith(b"["):
        return "coco"
    tasks = b'"data"' in start and (b'"annotations"' in start or b'"completions"' in start)
    return "label_studio" if tasks else "table"


def coco_files(folder: Path) -> list[Path]:
    """Return the files that Roboflow writes into the folders of the splits, sorted by name.

    Raises:
        DataError: if the folder cannot be read.
    """
    with _read(folder):
        places = [folder, *(each for each in sorted(_folders(folder)) if split_named(each.name))]
        return [place / COCO_NAME for place in places if (place / COCO_NAME).is_file()]


def metadata_files(folder: Path) -> list[Path]:
    """Return the tables that describe the images beside them, in a folder or those of its splits.

    They are `metadata.csv`, `.jsonl` or `.parquet`, as the library `datasets` reads them, and
    Roboflow's `_classes.csv`.

    Raises:
        DataError: if the folder cannot be read.
    """
    if not folder.is_dir():
        return []
    with _read(folder):
        inner = [each for each in sorted(_folders(folder)) if split_named(each.name)]
        for places in ([folder], inner):
            tables = [
                place / name
                for place in places
                for name in METADATA_NAMES
                if (place / name).is_file()
            ]
            if tables:
                return tables
    return []


def _has_class_folders(folder: Path) -> bool:
    """Return whether a folder, or one of its splits, has folders of images that may be classes."""
    inner = [each for each in _folders(folder) if split_named(each.name)]
    for place in (folder, *inner):
        named = [each for each in _folders(place) if not split_named(each.name)]
        with_images = [each for each in named if _has_images(each)]
        if len(with_images) >= _FEWEST_CLASSES:
            return True
    return False


def _has_images(folder: Path) -> bool:
    return any(each.suffix.lower() in IMAGE_SUFFIXES for each in folder.iterdir())


def table_parts(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, or of its folder `data`, sorted by name.

    A folder with other folders or images beside them is one of images, so it has no parts; neither
    has a file.

    Raises:
        DataError: if the folder cannot be read.
    """
    if not folder.is_dir():
        return []
    with _read(folder):
        inner = _folders(folder)
        place = inner[0] if [each.name for each in inner] == ["data"] else folder
        found = sorted(place.glob("*.parquet"))
        has_images = any(each.suffix.lower() in IMAGE_SUFFIXES for each in place.iterdir())
        return [] if _folders(place) or has_images else found


def _folders(folder: Path) -> list[Path]:
    return [
        each
        for each in folder.iterdir()
        if each.is_dir()
        and not each.name.startswith(".")
        and not DEFAULT_IGNORED.skips(each.name, each.name, is_folder=True)
    ]
