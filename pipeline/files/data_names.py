"""What names tell about data: the kind of a path, the split of a folder, a name for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from patchline.pipeline.files.ignored_files import DEFAULT_IGNORED

DataKind = Literal["folder", "archive", "table", "shards"]
Split = Literal["train", "validation", "test"]

SPLIT_NAMES: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
"""The usual names of the splits, in lower case."""
_FILLERS = frozenset({
    "set", "data", "dataset", "subset", "split", "partition", "image", "images", "img", "imgs",
    "photos", "pictures", "samples", "files", "folder", "seg", "shards",
})  # fmt: skip
"""Words that say nothing beside the name of a split: `train_images`."""
_GLUED = re.compile(f"({'|'.join(SPLIT_NAMES)})(set|data|dataset|images|imgs)")

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif",
    ".jfif", ".jp2", ".j2k", ".heic", ".heif",
})  # fmt: skip
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


def data_kind(path: str) -> DataKind:
    """Return what a path is; anything but an archive or a table counts as a folder.

    A folder of Parquet files, as data-set hubs export a table in parts, counts as a table. Tar
    files of samples, alone or in a folder, are shards.
    """
    from patchline.pipeline.files.tar_shards import shards_in

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


def stem_of(file: Path) -> str:
    """Return a file's name without the suffix of an archive or a table."""
    suffixes = sorted((*ARCHIVE_SUFFIXES, *TABLE_SUFFIXES), key=len, reverse=True)
    ending = next((end for end in suffixes if file.name.lower().endswith(end)), "")
    return file.name[: len(file.name) - len(ending)]


@lru_cache(maxsize=1024)  # the rows of a table and the files of a folder repeat a few names
def split_named(name: str, *, exactly: bool = False) -> Split | None:
    """Return the split that a name usually means, in any case; None for any other name.

    Words around it that say nothing may be there: `train_images`, `testset`. A name with a number,
    with two splits (`train_val`) or with any other word means nothing.

    Args:
        name: of a folder, for example.
        exactly: whether no other word may be there.
    """
    if exactly:
        return SPLIT_NAMES.get(name.strip().lower())
    found = set()
    for word in re.split(r"[\s_.-]+", name.strip().lower()):
        glued = _GLUED.fullmatch(word)
        split = SPLIT_NAMES.get(glued[1] if glued else word)
        if split is not None:
            found.add(split)
        elif word and word not in _FILLERS:
            return None
    return found.pop() if len(found) == 1 else None


def valid_name(name: str) -> str:
    """Return a name for data: characters that the name of a model may not have are replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:100] or "images"
