"""The images of a folder that people may be asked about."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.data_names import IMAGE_SUFFIXES
from patchline.pipeline.files.folder_walk import walk_files
from patchline.pipeline.files.table_cells import plain_cell, table_cell

_RANDOM_SHARE = 0.1
"""Of the images: those that only the random draws ask about."""


class PoolImage(NamedTuple):
    """An image of the folder."""

    key: str
    """Stands for it in addresses and requests, so that a path never does."""
    path: str
    """Relative to the folder of the table, with forward slashes."""
    name: str
    """Relative to the folder that is labelled."""
    file: Path


class Pool:
    """The images below a folder, sorted by name.

    Args:
        folder: with the images.
        table_folder: that the paths of answers are relative to.

    Attributes:
        images: by key.
        left_out: images whose names no table can hold.

    Raises:
        DataError: if there are none, or the folder cannot be opened.
    """

    def __init__(self, folder: Path, table_folder: Path) -> None:
        if not folder.exists():
            raise DataError(f"There is no folder {folder}. Check the path.")
        if not folder.is_dir():
            raise DataError(f"{folder} is a file. Give the folder of the images.")
        self.folder = folder.absolute()
        self._table_folder = table_folder.absolute()
        self.images: dict[str, PoolImage] = {}
        self.left_out: list[str] = []
        self.refresh()
        if not self.images:
            raise DataError(
                f"{folder} holds no images to label. Add images, or give another folder."
            )
        self.by_path = {image.path: image for image in self.images.values()}

    def refresh(self) -> bool:
        """Look for images that are new or gone; return whether there are any."""
        found: dict[str, PoolImage] = {}
        left_out: list[str] = []
        for image in self._present_images(left_out):
            found[image.key] = image
        changed = found.keys() != self.images.keys()
        self.images, self.left_out = found, left_out
        self.by_path = {image.path: image for image in found.values()}
        return changed

    def _present_images(self, left_out: list[str]) -> Iterator[PoolImage]:
        inside = self.folder == self._table_folder
        for name, entry in walk_files(self.folder, lambda _path, _error: None):
            if Path(name).suffix.lower() not in IMAGE_SUFFIXES:
                continue
            path = name
            if not inside:
                path = Path(os.path.relpath(self.folder / name, self._table_folder)).as_posix()
            if not _is_plain(path):
                left_out.append(name)
                continue
            key = hashlib.sha256(path.encode()).hexdigest()[:16]
            yield PoolImage(key, path, name, Path(entry.path))


def drawn_at_random(keys: list[str], seed: int) -> tuple[list[str], list[str]]:
    """Return a random tenth of the images, and the others, both in a random order.

    An image is in the same part, whatever other images there are. Only random draws ask about the
    tenth, so that those of it that are labelled are a random sample of all images at any time.

    Args:
        keys: of all images.
        seed: of the draw.
    """
    sample: list[tuple[float, str]] = []
    others: list[tuple[float, str]] = []
    for key in keys:
        number = random.Random(f"{seed} {key}").random()  # noqa: S311 - statistics
        (sample if number < _RANDOM_SHARE else others).append((number, key))
    return [key for _, key in sorted(sample)], [key for _, key in sorted(others)]


def _is_plain(path: str) -> bool:
    """Return whether a table holds a path as it is."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return plain_cell(table_cell(path)) == path and "\n" not in path
