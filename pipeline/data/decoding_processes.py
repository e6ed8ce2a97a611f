"""Decode images into a prepared store in child processes, which write to its mapped file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.data.child_processes import ChildProcesses, answer_parent
from pipeline.data.decoding import UndecodableImageError, decoded
from pipeline.data.describing import FEW_PIXELS
from pipeline.data.image_root import root_image_bytes
from pipeline.data.resizing import ResizePolicy, resize_image
from pipeline.data.store_files import Pixels
from pipeline.errors import DataError

_BATCH = 50
_LARGE = "large"


class WantedImage(NamedTuple):
    """An image of a store."""

    row: int
    path: str
    sha256: str
    """Of its file when it was described."""


class _LargeImageError(Exception):
    """The image is for the parent, whose threads share a budget of memory."""


def decode_into(
    images: Pixels,
    root: Path,
    wanted: WantedImage,
    resize: ResizePolicy,
    most_pixels: int | None = None,
) -> None:
    """Decode an image into its row.

    Args:
        images: uint8 (N, H, W, C).
        root: the folder or archive that its path is relative to.
        wanted: the image.
        resize: how it becomes H x W.
        most_pixels: larger images raise an error instead.

    Raises:
        DataError: if the file has changed since it was described.
    """
    _, height, width, channels = images.shape

    def check(header: tuple[int, int, str]) -> None:
        if most_pixels and header[0] * header[1] > most_pixels:
            raise _LargeImageError

    try:
        with root_image_bytes(root, wanted.path) as data:
            if hashlib.sha256(data).hexdigest() != wanted.sha256:
                raise DataError(f"{wanted.path} changed while it was being read. Run again.")
            with decoded(data, channels, known_whole=True, on_header=check) as pixels:
                images[wanted.row] = resize_image(pixels, height, width, resize)
    except UndecodableImageError as error:
        raise DataError(f"{wanted.path}: {error}. Restore it, or run again.") from error


class DecodingProcesses:
    """Child processes that decode into one store.

    Args:
        images_file: the store's array, which has its full size.
        root: the folder or archive that the paths are relative to.
        resize: how an image becomes a row.
    """

    def __init__(self, images_file: Path, root: Path, resize: ResizePolicy) -> None:
        self._root, self._resize = root, resize
        self._images: Pixels = np.load(images_file, mmap_mode="r+", allow_pickle=False)
        self._children = ChildProcesses(__name__, [str(images_file), str(root), resize])

    def __enter__(self) -> Self:
        self._children.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._children.__exit__()

    def decode(self, wanted: Sequence[WantedImage]) -> Iterator[None]:
        """Decode images into their rows; yields for each that is done.

        Raises:
            DataError: if a file has changed since it was described.
        """
        batches = [wanted[first : first + _BATCH] for first in range(0, len(wanted), _BATCH)]
        answers = self._children.answers(batches, lambda batch: [_LARGE] * len(batch))
        for batch, results in zip(batches, answers, strict=True):
            for each, result in zip(batch, results, strict=True):
                if result == _LARGE:
                    decode_into(self._images, self._root, each, self._resize)
                elif result:
                    raise DataError(result)
                yield


def _result(images: Pixels, root: Path, resize: ResizePolicy, wanted: WantedImage) -> str:
    """Decode an image; return what went wrong, or an empty text."""
    try:
        decode_into(images, root, wanted, resize, FEW_PIXELS)
    except _LargeImageError:
        return _LARGE
    except DataError as error:
        return str(error)
    return ""


def _prepared(job: list[Any]) -> Callable[[Any], Any]:
    file, root, resize = job
    images = np.load(file, mmap_mode="r+", allow_pickle=False)
    result = partial(_result, images, Path(root), resize)
    return lambda question: [result(WantedImage(*each)) for each in question]


if __name__ == "__main__":
    answer_parent(_prepared)
