"""What names tell about data: the split of a folder, the suffixes of files, a name for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

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
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json", ".xlsx")


TEXT_SUFFIXES = (".txt", ".md", ".rst", ".html", ".xml", ".yaml", ".yml", ".toml", ".log", ".py")


def may_be_image(name: str) -> bool:
    """Return whether a file that lies beside images may be one: any but a table or a text."""
    return not name.lower().endswith((*TABLE_SUFFIXES, *TEXT_SUFFIXES))


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
        name: the name of a folder, for example.
        exactly: whether no other word may be there.
    """
    if exactly:
        return SPLIT_NAMES.get(name.strip().lower())
    splits = set()
    for word in re.split(r"[\s_.-]+", name.strip().lower()):
        glued = _GLUED.fullmatch(word)
        split = SPLIT_NAMES.get(glued[1] if glued else word)
        if split is not None:
            splits.add(split)
        elif word and word not in _FILLERS:
            return None
    return splits.pop() if len(splits) == 1 else None


def valid_name(name: str) -> str:
    """Return a name for data: characters that the name of a model may not have are replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:100] or "images"
