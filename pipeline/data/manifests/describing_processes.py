"""Describe many files: by threads, or from some thousands on by child processes.

The children leave large images to this process, whose threads share a budget of memory. Where the
launcher of a run has several machines, each describes parts of the files in this way, see
`describing_worker.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from patchline.pipeline.data.manifests.describing import (
    FEW_PIXELS,
    LargeImageError,
    OnImage,
    Row,
    describe,
)
from patchline.pipeline.data.reading.child_processes import (
    FEWEST_FILES,
    answer_parent,
    pay_off,
    reading_map,
)
from patchline.pipeline.data.reading.decoding import Pixels
from patchline.pipeline.data.reading.resizing import ResizePolicy, resize_image
from patchline.plugin_api import ListedImage

_BATCH = 100
Files = Sequence[tuple[ListedImage, bool]]
"""Files, and whether each is wanted."""


class KeptImageArray:
    """An array of the prepared store's format that images are decoded into, by any process.

    Args:
        file: an array of uint8 (N, H, W, 3) on disk, a row for each file of a scan.
        resize: how an image becomes H x W.
    """

    def __init__(self, file: Path, resize: ResizePolicy) -> None:
        self.file, self.resize = file, resize
        images = np.load(file, mmap_mode="r", allow_pickle=False)
        self._shape, self._first_byte = images.shape[1:], images.offset

    @classmethod
    def of_size(cls, file: Path, size: tuple[int, int, int], resize: ResizePolicy) -> Self:
        """Create an array of so many images (N, H, W), all black."""
        images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(*size, 3))
        del images
        return cls(file, resize)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        height, width, _ = self._shape
        return height, width

    def take(self, file: Path, first: int) -> None:
        """Take the images of another such array, from a place on."""
        images = np.load(file, mmap_mode="r", allow_pickle=False)
        with self.file.open("r+b") as opened:
            opened.seek(self._first_byte + first * int(np.prod(self._shape)))
            for start in range(0, len(images), _BATCH):
                opened.write(np.ascontiguousarray(images[start : start + _BATCH]).data)

    def beside(self, on_image: OnImage | None, place: int) -> OnImage:
        """Return what keeps an image in its row, after what else is called for it."""

        def keep(path: str, data: bytes, image_HWC: Pixels) -> None:
            if on_image:
                on_image(path, data, image_HWC)
            height, width, _ = self._shape
            kept = resize_image(image_HWC, height, width, self.resize)
            with self.file.open("r+b") as opened:  # faster than to a mapped file
                opened.seek(self._first_byte + place * kept.nbytes)
                opened.write(kept.data)

        return keep


def rows_in_process(
    root: Path,
    files: Files,
    on_image: OnImage | None = None,
    fewest: int = FEWEST_FILES,
    kept: KeptImageArray | None = None,
) -> Iterator[Row]:
    """Yield the row of each file, in their order.

    Args:
        root: the folder or archive that the paths are relative to.
        files: what to describe.
        on_image: called for each decoded image, in the thread of this process that decoded it.
        fewest: child processes are used for so many files or more.
        kept: gets each decoded image.
    """

    def row_of(file: tuple[int, ListedImage, bool]) -> Row:
        place, listed, is_labelled = file
        noted = kept.beside(on_image, place) if kept else on_image
        return describe(root, listed, noted, is_labelled=is_labelled)

    job: list[object] = [os.fspath(root)]
    job += [os.fspath(kept.file), kept.resize] if kept else []
    divided = on_image is None and pay_off(len(files), fewest)
    with reading_map(__name__, job, row_of, divided=divided) as rows:
        yield from rows([(place, *file) for place, file in enumerate(files)])


def _described(root: Path, kept: KeptImageArray | None, file: list[Any]) -> Row | None:
    place, listed, is_labelled = file
    noted = kept.beside(None, place) if kept else None
    try:
        return describe(
            *(root, ListedImage(*listed), noted), is_labelled=is_labelled, most_pixels=FEW_PIXELS
        )
    except LargeImageError:
        return None


def _prepared(job: list[Any]) -> Callable[[Any], Any]:
    root, *kept = job
    images = KeptImageArray(Path(kept[0]), kept[1]) if kept else None
    return partial(_described, Path(root), images)


if __name__ == "__main__":
    answer_parent(_prepared)
