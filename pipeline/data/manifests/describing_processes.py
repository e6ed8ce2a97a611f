"""Describe many files: by threads, or from some thousands on by child processes.

The children leave large images to this process, whose threads share a budget of memory. Where the
launcher of a run has several machines, each describes parts of the files in this way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Self

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
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workers.missing_data import stays_here
from patchline.pipeline.workers.worker_parts import (
    JobPart,
    number_of_parts,
    read_lines,
    run_parts,
    write_lines,
)
from patchline.pipeline.workspace.files import workspace_folder
from patchline.plugin_api import ListedImage

MODULE = "patchline.pipeline.data.manifests.describing_worker"
RESOURCES = Resources()
"""All cores of one machine."""
FEWEST_FILES_OF_PART = 2000
"""With fewer, a part is described before its worker would have started."""


class DescribingJob(FrozenModel):
    """The files of a part."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    files: Path
    """Lines of JSON: each file in its order, and whether it is wanted."""
    rows: Path
    """The file to write: a line of JSON for each file."""
    kept: Path | None = None
    """The array to write, uint8 (N, H, W, 3) with a row for each file: the decoded images."""
    shape: tuple[int, int] | None = None
    """Their height and width."""
    resize: ResizePolicy | None = None
    """How an image becomes a row of it."""


class PartDescribed(FrozenModel):
    """The file of rows is there."""

    files: int


_BATCH = 100
_FILES_FILE, _ROWS_FILE, _IMAGES_FILE = "files.jsonl", "rows.jsonl", "images.npy"
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


def rows_of(
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
    divided = number_of_parts(RESOURCES, len(files), FEWEST_FILES_OF_PART)
    is_divided = on_image is None and divided > 1
    if is_divided and not stays_here(root, (listed.path for listed, _ in files)):
        return _rows_by_workers(root, files, kept, divided)
    return rows_in_process(root, files, on_image, fewest, kept)


def _rows_by_workers(
    root: Path, files: Files, kept: KeptImageArray | None, divided: int
) -> Iterator[Row]:
    """Yield the rows that workers write, each of a range of the files."""
    scratch_place = workspace_folder.place()
    workspace_folder.make_folder(scratch_place)
    with TemporaryDirectory(dir=scratch_place, prefix=".building-") as scratch:
        bounds = [len(files) * each // divided for each in range(divided + 1)]
        parts = []
        for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
            folder = Path(scratch) / f"part-{number}"
            job = DescribingJob(
                root=root.absolute(),
                files=write_lines(folder / _FILES_FILE, files[first:stop]),
                rows=folder / _ROWS_FILE,
                kept=folder / _IMAGES_FILE if kept else None,
                shape=kept.size if kept else None,
                resize=kept.resize if kept else None,
            )
            parts.append(JobPart[PartDescribed](folder, job))
        results = run_parts(MODULE, parts, PartDescribed, lambda *_: None, RESOURCES)
        with closing(results):
            for first, part, _ in zip(bounds[:-1], parts, results, strict=True):
                if kept:
                    kept.take(part.folder / _IMAGES_FILE, first)
                    (part.folder / _IMAGES_FILE).unlink()
                yield from read_lines(part.folder / _ROWS_FILE)


def rows_in_process(
    root: Path,
    files: Files,
    on_image: OnImage | None = None,
    fewest: int = FEWEST_FILES,
    kept: KeptImageArray | None = None,
) -> Iterator[Row]:
    """Yield the row of each file, in their order, described on this machine; see `rows_of`."""

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
    job: list[object] = [os.fspath(root)]
    job += [os.fspath(kept.file), kept.resize] if kept else []
    with ChildProcesses(__name__, job) as children:
        answers = children.answers(questions, lambda question: [None] * len(question))
        for start, rows in zip(starts, answers, strict=True):
            for place, row in enumerate(rows, start):
                yield row or row_of(place)


def _described(root: Path, kept: KeptImageArray | None, question: list[Any]) -> list[Row | None]:
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
    images = KeptImageArray(Path(kept[0]), kept[1]) if kept else None
    return partial(_described, Path(root), images)


if __name__ == "__main__":
    answer_parent(_prepared)
