"""Describe many files: by threads, or from some thousands on by child processes.

The children leave large images to this process, whose threads share a budget of memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.manifests.describing import OnImage, Row, describe, describe_small
from patchline.pipeline.data.reading.child_processes import (
    FEWEST_FILES,
    ChildProcesses,
    answer_parent,
    pay_off,
    threads,
)
from patchline.pipeline.data.reading.decoding import Pixels
from patchline.pipeline.data.reading.resizing import ResizePolicy, resize_image
from patchline.plugin_api import ListedImage

_BATCH = 100
Files = Sequence[tuple[ListedImage, bool]]
"""Files, and whether each is wanted."""


class KeptImages:
    """An array of the prepared store's format that images are decoded into, by any process.

    Args:
        file: an array of uint8 (N, H, W, 3) on disk, a row for each file of a scan.
        resize: how an image becomes H x W.
    """

    def __init__(self, file: Path, resize: ResizePolicy) -> None:
        self.file, self.resize = file, resize
        images = np.load(file, mmap_mode="r", allow_pickle=False)
        self._shape, self._first_byte = images.shape[1:], images.offset

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


def rows_of(
    root: Path,
    files: Files,
    on_image: OnImage | None = None,
    fewest: int = FEWEST_FILES,
    kept: KeptImages | None = None,
) -> Iterator[Row]:
    """Yield the row of each file, in their order.

    Args:
        root: the folder or archive that the paths are relative to.
        files: what to describe.
        on_image: called for each decoded image, in the thread of this process that decoded it.
        fewest: child processes are used for so many files or more.
        kept: gets each decoded image.
    """

    def row_of(place: int) -> Row:
        listed, is_labelled = files[place]
        noted = kept.beside(on_image, place) if kept else on_image
        return describe(root, listed, noted, is_labelled=is_labelled)

    if on_image is not None or not pay_off(len(files), fewest):
        with threads() as pool:
            yield from pool.map(row_of, range(len(files)))
        return
    starts = range(0, len(files), _BATCH)
    questions = [
        [(place, *files[place]) for place in range(at, min(at + _BATCH, len(files)))]
        for at in starts
    ]
    job = [os.fspath(root), *([os.fspath(kept.file), kept.resize] if kept else [])]
    with ChildProcesses(__name__, job) as children:
        answers = children.answers(questions, lambda question: [None] * len(question))
        for start, rows in zip(starts, answers, strict=True):
            for place, row in enumerate(rows, start):
                yield row or row_of(place)


def _described(root: Path, kept: KeptImages | None, question: list[Any]) -> list[Row | None]:
    return [
        describe_small(
            root,
            ListedImage(*listed),
            kept.beside(None, place) if kept else None,
            is_labelled=is_labelled,
        )
        for place, listed, is_labelled in question
    ]


def _prepared(job: list[Any]) -> Callable[[Any], Any]:
    root, *kept = job
    images = KeptImages(Path(kept[0]), kept[1]) if kept else None
    return partial(_described, Path(root), images)


if __name__ == "__main__":
    answer_parent(_prepared)
