"""The files of a store of decoded images: one array, memory-mapped, in shards with a digest each.

`images.npy` holds all images, so that a shuffled batch is one read of one memory-mapped array. A
shard is a range of its rows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from patchline.pipeline.data.store.store_shards import ROWS, Pixels, Shape, StoreShards
from patchline.pipeline.workspace.files.finished_pieces import Piece
from patchline.pipeline.workspace.files.resumable_array import ResumableArray

IMAGES_FILE = "images.npy"
_MOST_OF_THE_DISK = 0.9


class DecodedFiles(StoreShards):
    """The array of a store that is complete, being built, or damaged.

    Attributes:
        images: the array of all images.
    """

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder, shape)
        self.images = ResumableArray(folder / IMAGES_FILE, shape, np.uint8, ROWS)
        self.finished = self.images.finished

    def fit_the_disk(self, copies: int = 1) -> bool:
        """Return whether so many of them would take at most nine tenths of the free space."""
        place = self.folder if self.folder.is_dir() else self.folder.parent
        free = shutil.disk_usage(place).free
        return copies * self.images.bytes_to_allocate() <= _MOST_OF_THE_DISK * free

    def read(self, shard: Piece) -> Pixels:
        """Return the images of a shard."""
        return self.images.read(shard)

    def _begin(self, intact: list[Piece]) -> None:
        self.images.begin(intact)
