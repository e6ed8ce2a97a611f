"""The images of a folder that people may be asked about."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
from patchline.pipeline.workspace.files.folder_walk import walk_files
from patchline.pipeline.workspace.files.table_cells import plain_cell, table_cell

_RANDOM_SHARE = 1 / 3
"""Of the images: those that only the random draws ask about. A run's validation and test splits are
made of them, and by default these take 30 %."""


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
        images: by key; `use` replaces the whole table, so that a thread may hold on to it.
        by_path: the same ones.
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
        self.by_path: dict[str, PoolImage] = {}
        self.left_out: list[str] = []
        self.use(self.present())
        if not self.images:
            raise DataError(
                f"{folder} holds no images to label. Add images, or give another folder."
            )

    def present(self) -> list[PoolImage]:
        """Return the images that are in the folder at the moment, which may take a second."""
        left_out: list[str] = []
        images = list(self._walked(left_out))
        self.left_out = left_out
        return images

    def use(self, images: Sequence[PoolImage]) -> bool:
        """Use these images; return whether they are others than before."""
        changed = {image.key for image in images} != self.images.keys()
        self.images = {image.key: image for image in images}
        self.by_path = {image.path: image for image in images}
        return changed

    def _walked(self, left_out: list[str]) -> Iterator[PoolImage]:
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


def drawn_at_random(
    keys: Iterable[str], seed: int, near: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], list[str]]:
    """Return a random third of the images, and the others, both in a random order.

    An image is in the same part, whatever other images there are, with the near duplicates of it.
    Only random draws ask about the third, so that those of it that are labelled are a random sample
    of all images at any time.

    Args:
        keys: of all images.
        seed: of the draw.
        near: the near duplicates of images that have some.
    """
    near = near or {}
    sample: list[tuple[float, str]] = []
    others: list[tuple[float, str]] = []
    for key in keys:
        first = min((key, *near.get(key, ())))
        number = random.Random(f"{seed} {first}").random()  # noqa: S311 - statistics
        (sample if number < _RANDOM_SHARE else others).append((number, key))
    return [key for _, key in sorted(sample)], [key for _, key in sorted(others)]


def _is_plain(path: str) -> bool:
    """Return whether a table holds a path as it is."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return plain_cell(table_cell(path)) == path and "\n" not in path
