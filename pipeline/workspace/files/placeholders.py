"""Files that stand for an object that is read by ranges: they hold its size and its ETag.

They are where the whole object would be, below `sources/objects/SCHEME/BUCKET` of a workspace, and
do not change while the object does not. Whoever opens files by `OpenFile` reads the object
through them.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from patchline.pipeline.workspace.files.atomic_files import write_text

FOLDER = Path("sources/objects")
"""Folder of a workspace for downloaded objects, and what stands for them."""
PARTS_FOLDER = Path("sources/object_parts")
"""Folder of a workspace for what was read of objects."""
_MARK = f"{os.sep}{FOLDER}{os.sep}"
_FORMAT = "patchline object 1"
_MOST_BYTES = 1 << 14


class RangedObject(NamedTuple):
    """An object that is read by ranges."""

    address: str
    """`SCHEME://BUCKET/KEY`, by the path of its placeholder."""
    bytes: int
    e_tag: str
    parts: Path
    """Folder that receives what was read of objects of its bucket."""


class RangeReader(Protocol):
    """Reads an object; several threads may do so at the same time."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes of the object from a position, fewer only where it ends."""
        ...

    def whole(self) -> Path:
        """Return a file with all of the object."""
        ...


def write_placeholder(file: Path, size: int, e_tag: str) -> None:
    """Write a file that stands for an object of a size in bytes."""
    write_text(file, json.dumps({"format": _FORMAT, "bytes": size, "e_tag": e_tag}))


def placeholder(file: Path) -> RangedObject | None:
    """Return the object that a file stands for; None for any other file."""
    before, mark, after = str(file).rpartition(_MARK)
    if not mark:
        return None
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(file.read_bytes())
        if content["format"] != _FORMAT:
            return None
        size, e_tag = int(content["bytes"]), str(content["e_tag"])
    except (OSError, ValueError, KeyError, TypeError):  # the object itself, in full
        return None
    scheme, bucket, *key = Path(after).parts
    parts = Path(before) / PARTS_FOLDER / scheme / bucket
    return RangedObject(f"{scheme}://{bucket}/{'/'.join(key)}", size, e_tag, parts)


def range_reader(file: Path) -> RangeReader | None:
    """Return what reads the object that a file stands for; None for any other file."""
    ranged = placeholder(file)
    if ranged is None:
        return None
    # by name: this package lies below that of object stores
    ranges = importlib.import_module("patchline.pipeline.workspace.remote_ranges")
    reader: RangeReader = ranges.ObjectRanges(ranged)
    return reader


def size_of(file: Path) -> int:
    """Return the size of a file in bytes, or that of the object that it stands for."""
    ranged = placeholder(file)
    return file.stat().st_size if ranged is None else ranged.bytes


def whole_file(file: Path) -> Path:
    """Return a file as it is; for one that stands for an object, a file with all of it."""
    reader = range_reader(file)
    return file if reader is None else reader.whole()
