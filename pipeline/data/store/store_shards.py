"""The format of a prepared store, its shards, and the files of a store of decoded images.

`contents.npy` (N, 32) holds the SHA-256 digest of the file that each row comes from.

`images.npy` holds all images, so that a shuffled batch is one read of one memory-mapped array. A
shard is a range of its rows.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.pixel_values.pixel_mapping import PLAIN, PixelMapping
from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.resumable_work import FinishedPieces, Piece, ResumableArray

SHARD_BYTES = 1 << 26
"""About so many bytes of decoded images are in a shard."""
CONTENTS_FILE = "contents.npy"
ROWS = "decoded images"
"""What a warning calls the rows of a store."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Shape = tuple[int, int, int, int]
"""Images, height, width, channels."""
Contents = np.ndarray[Any, np.dtype[np.uint8]]
"""The SHA-256 digest of each file (N, 32)."""


@dataclass(frozen=True)
class StoreSpec:
    """The format of every image of a store."""

    channels: int
    height: int
    width: int
    resize: ResizePolicy
    mapping: PixelMapping = PLAIN
    """What becomes of values that are not of 8 bits."""

    def shape(self, images: int) -> Shape:
        """Return the shape of so many images."""
        return images, self.height, self.width, self.channels


class ReadImage(NamedTuple):
    """An image in two forms."""

    file: bytes
    """What the image was decoded from."""
    pixels_in_file: int
    """Height times width before resizing."""
    resized_HWC: Pixels


class StoreShards(ABC):
    """The shards of a store that is complete, being built, or damaged.

    Args:
        folder: the folder of the store.
        shape: the shape (N, H, W, C) of all its images, decoded.
    """

    finished: FinishedPieces

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape

    @abstractmethod
    def read(self, shard: Piece) -> Pixels | Sequence[memoryview]:
        """Return the images of a shard, as they are kept."""

    def shards(self) -> list[Piece]:
        """Return all shards, whether they exist or not."""
        rows = self.rows_of_a_shard()
        firsts = range(0, self.shape[0], rows)
        return [Piece(first, min(first + rows, self.shape[0])) for first in firsts]

    def incomplete(self) -> list[Piece]:
        """Return the shards that are missing, cut short, or do not match their digest."""
        intact = set(self.finished.intact())
        return [shard for shard in self.shards() if shard not in intact]

    def begin(self, contents: Contents, incomplete: Iterable[Piece]) -> None:
        """Record what the store is made of, and forget the incomplete shards."""
        self._begin([shard for shard in self.shards() if shard not in set(incomplete)])
        with open_replacing(self.folder / CONTENTS_FILE) as opened:
            np.save(opened, contents, allow_pickle=False)

    def rows_of_a_shard(self) -> int:
        """Return the number of rows of each shard but the last."""
        _, height, width, channels = self.shape
        return max(1, SHARD_BYTES // (height * width * channels))

    def _begin(self, intact: list[Piece]) -> None:
        """Make the files ready for writing shards, and forget all but the intact ones."""
        self.finished.keep(intact)


def read_contents(folder: Path) -> Contents | None:
    """Return the digests of the files that a store was decoded from; None if they are unusable."""
    try:
        contents: Contents = np.load(folder / CONTENTS_FILE, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    usable = contents.dtype == np.uint8 and contents.ndim == 2 and contents.shape[1] == 32  # noqa: PLR2004 - bytes of SHA-256
    return contents if usable else None


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
