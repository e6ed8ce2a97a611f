"""What kind of data a path holds: a folder of images, an archive, a table or shards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from patchline.pipeline.files.data_names import ARCHIVE_SUFFIXES, IMAGE_SUFFIXES, TABLE_SUFFIXES
from patchline.pipeline.files.ignored_files import DEFAULT_IGNORED
from patchline.pipeline.files.tar_shards import shards_in

DataKind = Literal["folder", "archive", "table", "shards"]


def data_kind(path: str) -> DataKind:
    """Return what a path is; anything but an archive or a table counts as a folder.

    A folder of Parquet files, as data-set hubs export a table in parts, counts as a table. Tar
    files of samples, alone or in a folder, are shards.
    """
    try:
        if Path(path).is_dir() and table_parts(Path(path)):
            return "table"
        if shards_in(Path(path)):
            return "shards"
        if Path(path).is_dir():
            return "folder"
    except (OSError, ValueError):  # not a path of this system: whoever reads it says so
        pass
    name = Path(path).name.lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        return "archive"
    return "table" if name.endswith(TABLE_SUFFIXES) else "folder"


def table_parts(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, or of its folder `data`, sorted by name.

    A folder with other folders or images beside them is one of images, so it has no parts.
    """
    try:
        inner = _folders(folder)
        place = inner[0] if [each.name for each in inner] == ["data"] else folder
        found = sorted(place.glob("*.parquet"))
        has_images = any(each.suffix.lower() in IMAGE_SUFFIXES for each in place.iterdir())
        return [] if _folders(place) or has_images else found
    except OSError:  # whoever reads the folder says why it cannot be
        return []


def _folders(folder: Path) -> list[Path]:
    return [
        each
        for each in folder.iterdir()
        if each.is_dir()
        and not each.name.startswith(".")
        and not DEFAULT_IGNORED.skips(each.name, each.name, is_folder=True)
    ]
