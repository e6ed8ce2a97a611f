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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.data.reading.decoding import UndecodableImageError, reserve_and_decode
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.resizing import Pixels, ResizePolicy, resize_image
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
        super().__init__(folder, spec.shape(count))
        self._spec = spec
        self.finished = FinishedPieces(
            folder / "packed.pieces.jsonl", lambda each: digest_of(self.file_of(each)).sha256, ROWS
        )

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


class IndexedImages(ABC):
    """Images, uint8 (N, H, W, C), that are read when they are indexed.

    Args:
        shape: the shape (N, H, W, C) of all images.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Pixels:
        """Return an image (H, W, C), or several (n, H, W, C) for a slice or an array of rows."""
        rows = np.asarray(range(len(self))[key] if isinstance(key, slice) else key)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        if rows.size and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"there is no image {key} among {len(self)}")
        images_NHWC = np.empty((rows.size, *self.shape[1:]), np.uint8)
        self._read(rows.reshape(-1) % len(self) if rows.size else np.zeros(0, int), images_NHWC)
        return images_NHWC if rows.ndim else images_NHWC[0]

    @abstractmethod
    def _read(self, rows: np.ndarray[Any, Any], images_NHWC: Pixels) -> None:
        """Read some rows, counted from 0, into an array of their own."""


class DecodedWhenUsed(IndexedImages):
    """Images that are kept as files.

    Args:
        shape: the shape (N, H, W, C) of all images, decoded.
        resize: how an image becomes H x W.
        threads: the number of threads that decode; None uses one for each processor.
    """

    def __init__(self, shape: Shape, resize: ResizePolicy, threads: int | None) -> None:
        super().__init__(shape)
        _, height, width, channels = shape
        self._spec = StoreSpec(channels, height, width, resize)
        self._threads = threads or processors()

    def _read(self, rows: np.ndarray[Any, Any], images_NHWC: Pixels) -> None:
        for place, image_HWC in enumerate(self._decoded(rows)):
            images_NHWC[place] = image_HWC

    @abstractmethod
    def _decoded(self, rows: np.ndarray[Any, Any]) -> Iterable[Pixels]:
        """Yield the images of some rows."""

    def _mapped(self, decode: Callable[[Any], Pixels], items: Sequence[Any]) -> Iterable[Pixels]:
        if self._threads == 1 or len(items) < 2:  # noqa: PLR2004 - nothing to share
            return map(decode, items)
        return self._pool.map(decode, items)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads)


class PackedImages(DecodedWhenUsed):
    """The images of a packed store.

    Args:
        folder: the folder of the store.
        threads: the number of threads that decode; by default one for each processor.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        described = json.loads((folder / PACKED_FILE).read_text("utf-8"))
        super().__init__(tuple(described["shape"]), described["resize"], threads)
        self._folder = folder
        self._rows_of_a_shard = int(described["rows_of_a_shard"])
        self._shards: dict[int, _PackedShard] = {}

    def ranges_of(self, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Path, int, int]]:
        """Yield the file of each row, and where its bytes begin and end in it."""
        for row in rows.tolist():
            within = row % self._rows_of_a_shard
            file = _shard_file(self._folder, row - within)
            yield file, *self._shard(file, row - within).bounds(within)

    def _decoded(self, rows: np.ndarray[Any, Any]) -> Iterable[Pixels]:
        return self._mapped(self._image, rows.tolist())

    def _image(self, row: int) -> Pixels:
        within = row % self._rows_of_a_shard
        file = _shard_file(self._folder, row - within)
        try:
            data = bytes(self._shard(file, row - within).image(within))
        except (OSError, ValueError, IndexError) as error:
            raise _make_damage_error(file, error) from error
        return unpack_image(data, self._spec, file)

    def _shard(self, file: Path, first: int) -> _PackedShard:
        """Return a shard, whose images stay on disk until they are used."""
        if first not in self._shards:
            self._shards[first] = _PackedShard(np.memmap(file, np.uint8, mode="r"))
        return self._shards[first]


def pack_image(image: ReadImage, *, keep_file: bool = True) -> bytes:
    """Return the bytes to keep: the file, or a PNG file of the resized image if that is better.

    Args:
        image: the image as a file and as resized pixels.
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


def unpack_image(data: bytes, spec: StoreSpec, file: Path) -> Pixels:
    """Return the image (H, W, C) that is kept as an image file.

    Args:
        data: the image file.
        spec: the format of the store.
        file: the file that holds the image, for an error.

    Raises:
        DataError: if it is damaged.
    """
    try:
        with reserve_and_decode(
            data, spec.channels, known_whole=True, jpeg_decoder=decode_jpeg
        ) as pixels_HWC:
            return resize_image(pixels_HWC, spec.height, spec.width, spec.resize)
    except (UndecodableImageError, OSError, ValueError, IndexError) as error:
        raise _make_damage_error(file, error) from error


def _make_damage_error(file: Path, error: Exception) -> DataError:
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
