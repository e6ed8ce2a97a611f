"""The files of a store of packed images: image files one after another, decoded when they are used.

For images that would not fit the disk decoded. An image is kept as the file that it came from, or,
where that is smaller, as a PNG file of the resized image, which loses nothing: both are decoded to
the pixels that a store of decoded images would hold.

`packed.json` tells the shape, how images are resized, and the rows of a shard. Each shard is a
file, `packed-` and its first row: the offsets of its n images and their end (n + 1 numbers of
8 bytes, little-endian), then the images.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decoded
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.resizing import Pixels, resize_image
from patchline.pipeline.data.store.store_shards import (
    ROWS,
    ReadImage,
    Shape,
    StoreShards,
    StoreSpec,
)
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.atomic_files import open_replacing, write_text
from patchline.pipeline.workspace.files.resumable_work import FinishedPieces, Piece
from patchline.pipeline.workspace.files.sealed_files import digest_of

PACKED_FILE = "packed.json"
_OFFSET = np.dtype("<u8")
_SMALL_FILE = 1 / 4
"""Of the decoded image: a PNG file would hardly be smaller."""
_COSTLY = 16
"""A file with so many times the pixels is not decoded repeatedly."""


class PackedFiles(StoreShards):
    """The shards of a store that is complete, being built, or damaged."""

    def __init__(self, folder: Path, spec: StoreSpec, count: int) -> None:
        super().__init__(folder, (count, spec.height, spec.width, spec.channels))
        self._spec = spec
        self.finished = FinishedPieces(folder / "packed.pieces.jsonl", self._digest, ROWS)

    def write(self, shard: Piece, images: Sequence[bytes]) -> None:
        """Write the images of a shard."""
        sizes = [len(image) for image in images]
        first = (len(images) + 1) * _OFFSET.itemsize
        offsets = np.cumsum([first, *sizes], dtype=_OFFSET)
        with open_replacing(self.file_of(shard)) as opened:
            opened.write(offsets.tobytes())
            for image in images:
                opened.write(image)
        self.finished.add(shard)

    def read(self, shard: Piece) -> list[memoryview]:
        """Return the images of a shard, as image files."""
        packed_images = _PackedShard(np.fromfile(self.file_of(shard), np.uint8))
        return [packed_images.image(row) for row in range(shard.rows)]

    def file_of(self, shard: Piece) -> Path:
        """Return the file of a shard."""
        return _shard_file(self.folder, shard.first)

    def incomplete(self) -> list[Piece]:
        """Return the shards that are missing, cut short, or do not match their digest."""
        return super().incomplete() if (self.folder / PACKED_FILE).is_file() else self.shards()

    def _begin(self, intact: list[Piece]) -> None:
        super()._begin(intact)
        described = {
            "shape": self.shape,
            "resize": self._spec.resize,
            "rows_of_a_shard": self.rows_of_a_shard(),
        }
        write_text(self.folder / PACKED_FILE, json.dumps(described) + "\n")

    def _digest(self, shard: Piece) -> str:
        return digest_of(self.file_of(shard)).sha256


class PackedImages:
    """The images of a packed store, uint8 (N, H, W, C), decoded when they are indexed.

    Args:
        folder: of the store.
        threads: that decode; by default one for each processor.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        described = json.loads((folder / PACKED_FILE).read_text("utf-8"))
        count, height, width, channels = described["shape"]
        self.shape: Shape = (count, height, width, channels)
        self._folder = folder
        self._spec = StoreSpec(channels, height, width, described["resize"])
        self._rows_of_a_shard = int(described["rows_of_a_shard"])
        self._shards: dict[int, _PackedShard] = {}
        self._threads = threads or processors()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Pixels:
        """Return an image (H, W, C), or several (n, H, W, C) for a slice or an array of rows."""
        if isinstance(key, slice):
            return self._several(range(*key.indices(len(self))))
        if np.ndim(key) == 0:
            return self._image(operator.index(key))
        rows = np.asarray(key)
        return self._several(np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.tolist())

    def ranges_of(self, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Path, int, int]]:
        """Yield the file of each row, and where its bytes begin and end in it."""
        for row in rows.tolist():
            within = row % self._rows_of_a_shard
            file = _shard_file(self._folder, row - within)
            yield file, *self._shard(file, row - within).bounds(within)

    def _several(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> Pixels:
        images_NHWC = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, image_HWC in enumerate(self._decoded(rows)):
            images_NHWC[place] = image_HWC
        return images_NHWC

    def _decoded(self, rows: Sequence[int] | np.ndarray[Any, Any]) -> Iterator[Pixels]:
        if self._threads == 1 or len(rows) < 2:  # noqa: PLR2004 - nothing to share
            return map(self._image, rows)
        return self._pool.map(self._image, rows)

    def _image(self, row: int) -> Pixels:
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no image {row} among {len(self)}")
        place = row % len(self)
        within = place % self._rows_of_a_shard
        file = _shard_file(self._folder, place - within)
        try:
            data = bytes(self._shard(file, place - within).image(within))
        except (OSError, ValueError, IndexError) as error:
            raise _damaged(file, error) from error
        return unpacked(data, self._spec, file)

    def _shard(self, file: Path, first: int) -> _PackedShard:
        """Return a shard, whose images stay on disk until they are used."""
        if first not in self._shards:
            self._shards[first] = _PackedShard(np.memmap(file, np.uint8, mode="r"))
        return self._shards[first]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads)


def packed(image: ReadImage, *, keep_file: bool = True) -> bytes:
    """Return the bytes to keep: the file, or a PNG file of the resized image if that is better.

    Args:
        image: in both forms.
        keep_file: whether the file may be kept; not if its values are mapped to others.
    """
    pixels_HWC = image.resized_HWC
    cheap = (
        keep_file and image.pixels_in_file <= _COSTLY * pixels_HWC.shape[0] * pixels_HWC.shape[1]
    )
    if cheap and len(image.file) <= _SMALL_FILE * pixels_HWC.nbytes:
        return image.file
    channels = pixels_HWC.shape[2]
    in_opencv = pixels_HWC[:, :, ::-1] if channels == 3 else pixels_HWC  # noqa: PLR2004 - RGB
    done, encoded = cv2.imencode(".png", np.ascontiguousarray(in_opencv))
    if not done:
        raise DataError("OpenCV cannot write PNG files. Set data.store to decoded.")
    png = encoded.tobytes()
    return image.file if cheap and len(image.file) <= len(png) else png


def unpacked(data: bytes, spec: StoreSpec, file: Path) -> Pixels:
    """Return the image (H, W, C) that is kept as an image file.

    Args:
        data: the image file.
        spec: the format of the store.
        file: that it is in, for an error.

    Raises:
        DataError: if it is damaged.
    """
    try:
        with decoded(data, spec.channels, known_whole=True, jpeg_decoder=decode_jpeg) as pixels_HWC:
            return resize_image(pixels_HWC, spec.height, spec.width, spec.resize)
    except (UndecodableImageError, OSError, ValueError, IndexError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(f"{file} is damaged ({error}). Run again to repair it.")


def _shard_file(folder: Path, first: int) -> Path:
    return folder / f"packed-{first:09}"


class _PackedShard:
    """The images of the file of a shard."""

    def __init__(self, file: Pixels) -> None:
        self._content = memoryview(file.data)
        start = int(file[: _OFFSET.itemsize].view(_OFFSET)[0])  # of the first image, after these
        self._offsets = file[:start].view(_OFFSET)

    def image(self, row: int) -> memoryview:
        """Return an image file."""
        start, stop = self.bounds(row)
        return self._content[start:stop]

    def bounds(self, row: int) -> tuple[int, int]:
        """Return where an image file begins and ends."""
        return int(self._offsets[row]), int(self._offsets[row + 1])
