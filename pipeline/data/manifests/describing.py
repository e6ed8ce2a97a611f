"""Describe files, each as a row of the manifest: many by threads, or by child processes.

The children leave large images to this process, whose threads share a budget of memory. Where the
launcher of a run has several machines, each describes parts of the files in this way, see
`describing_worker.py`. Child processes import this module, so it imports neither pandas nor torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypedDict

import numpy as np

from patchline.pipeline.data.manifests.same_images import pixel_digest
from patchline.pipeline.data.pixel_values.file_summary import (
    ORDINARY,
    FileSummary,
    clarity,
    values_digest,
)
from patchline.pipeline.data.pixel_values.file_values import may_be_deep
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.child_processes import (
    FEWEST_FILES,
    answer_parent,
    pay_off,
    reading_map,
)
from patchline.pipeline.data.reading.decoding import (
    ImageHeader,
    Pixels,
    UndecodableImageError,
    deep_values,
    frame_count,
    reserve_and_decode,
)
from patchline.pipeline.data.reading.image_file import MAX_FILE_BYTES, SMALL_FILE_BYTES, too_large
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, find_refused_format, format_of
from patchline.pipeline.data.reading.image_root import open_image, root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.reading.reduced_values import read_reduced_bits
from patchline.pipeline.data.reading.resizing import ResizePolicy, resize_image
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
from patchline.pipeline.workspace.files.sealed_files import sha256_of
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.plugin_api import ListedImage

OnImage = Callable[[str, bytes, Pixels], None]
"""Called in a thread with the path, the file and the decoded RGB image (H, W, 3).

Not while files are described that are not of 8 bits: what their values mean is decided later.
"""
_LAST_UPRIGHT = 4
"""Greater orientations of EXIF swap width and height."""
FEW_PIXELS = 1 << 24
"""Images with more are decoded one after another."""


class Row(TypedDict):
    """A row of the manifest."""

    path: str
    label: str
    split: str
    group: str
    sha256: str
    pixels: str
    width: int
    height: int
    mode: str
    values: str
    bytes: int
    status: str
    reason: str


def empty_row(listed: ListedImage) -> Row:
    """Return the row of a file that is not opened."""
    return Row(
        path=printable(listed.path),
        label=printable(listed.label),
        split=listed.split or "",
        group=printable(listed.group or ""),
        sha256="",
        pixels="",
        width=0,
        height=0,
        mode="",
        values="",
        bytes=0,
        status="ok",
        reason="",
    )


class LargeImageError(Exception):
    """The image takes more memory than it may."""


def describe(
    root: Path,
    listed: ListedImage,
    on_image: OnImage | None = None,
    *,
    is_labelled: bool,
    most_pixels: int | None = None,
) -> Row:
    """Open a file once and return its row.

    Args:
        root: the folder or archive that its path is relative to.
        listed: the file.
        on_image: called with its content and its pixels, if it is an image.
        is_labelled: whether it has a class, or needs none; other files are foreign.
        most_pixels: a larger image raises a `LargeImageError` instead.
    """
    row = empty_row(listed)
    return _Description(root, listed.path, on_image, is_labelled, most_pixels, row).row()


@dataclass(frozen=True)
class _Description:
    """One file, and the row that is made for it."""

    root: Path
    path: str
    on_image: OnImage | None
    is_labelled: bool
    most_pixels: int | None
    _row: Row

    def row(self) -> Row:
        """Return the row; raise `LargeImageError` if the image is larger than it may be."""
        row = self._row
        if row["path"] != self.path:
            row["status"], row["reason"] = "damaged", "its name is not UTF-8; rename it"
            return row
        try:
            self._fill()
        except UndecodableImageError as error:
            row["status"], row["reason"] = "damaged", str(error)
        return row

    def _fill(self) -> None:
        """Complete the row; files that are not images or have no class are not read as images."""
        row = self._row
        head, small = self._start()
        if not self.is_labelled:
            row["status"], row["reason"] = "foreign", "is not in a class folder"
            return
        if head and not (format_of(head) or find_refused_format(head)):
            suffix = PurePosixPath(self.path).suffix.lower()
            if suffix not in IMAGE_SUFFIXES:
                row["status"], row["reason"] = "foreign", "not an image"
                return
        if row["bytes"] > MAX_FILE_BYTES:
            raise UndecodableImageError(too_large(row["bytes"]))
        if small and len(small) == row["bytes"]:
            self._decode(small)
            return
        if self.most_pixels and row["bytes"] > SMALL_FILE_BYTES:
            raise LargeImageError
        with root_image_bytes(self.root, self.path) as data:
            self._decode(data)

    def _start(self) -> tuple[bytes, bytes]:
        """Return the first bytes, and a small image file as a whole; digest what is no image."""
        row = self._row
        with open_image(self.root, self.path) as (opened, row["bytes"]):
            try:
                whole = self.is_labelled and row["bytes"] <= SMALL_FILE_BYTES
                start = opened.read(row["bytes"] + 1 if whole else HEAD_BYTES)
                head = start[:HEAD_BYTES]
                if self.is_labelled and format_of(head) and row["bytes"] <= MAX_FILE_BYTES:
                    return head, start if whole else b""
                opened.seek(0)
                row["sha256"] = sha256_of(opened)
            except OSError as error:  # a sector of the disk, or a server that is gone
                raise UndecodableImageError(f"cannot be read: {error.strerror or error}") from error
        return head, b""

    def _decode(self, data: bytes) -> None:
        row = self._row
        row["sha256"], row["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        if may_be_deep(data):
            with deep_values(data, self._note) as values:
                if values:
                    summary = FileSummary.of(values)
                    if values.orientation > _LAST_UPRIGHT:
                        row["width"], row["height"] = row["height"], row["width"]
                    row["pixels"], row["values"] = values_digest(values), summary.text
                    return
        opacity: list[Pixels] = []
        with reserve_and_decode(
            data,
            channels=3,
            on_header=self._note,
            jpeg_decoder=decode_jpeg,
            on_opacity=opacity.append,
        ) as image_HWC:
            summary = _summary(data, opacity)
            row["height"], row["width"] = image_HWC.shape[:2]
            row["pixels"], row["values"] = pixel_digest(image_HWC), summary.text
            if self.on_image:
                self.on_image(row["path"], data, image_HWC)
        if summary.hidden:  # all white, and so the same as every other such image
            with reserve_and_decode(
                data, channels=3, mapping=PixelMapping(opacity=False)
            ) as image_HWC:
                row["pixels"] = pixel_digest(image_HWC)

    def _note(self, header: ImageHeader) -> None:
        row = self._row
        row["width"], row["height"], row["mode"] = header
        if self.most_pixels and header.width * header.height > self.most_pixels:
            raise LargeImageError


def _summary(data: bytes, opacity: list[Pixels]) -> FileSummary:
    """Return what is special about an image of 8 bits."""
    clear, hidden = clarity(np.concatenate(opacity)) if opacity else (-1.0, False)
    summary = FileSummary(
        pages=frame_count(data), clear=clear, hidden=hidden, reduced=read_reduced_bits(data)
    )
    return ORDINARY if summary == ORDINARY else summary


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
        files: the files to describe, each with whether it is wanted.
        on_image: called for each decoded image, in the thread of this process that decoded it.
        fewest: the least number of files for which child processes are used.
        kept: the array that receives each decoded image; None to keep none.
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


def _describe_file(root: Path, kept: KeptImageArray | None, file: list[Any]) -> Row | None:
    place, listed, is_labelled = file
    noted = kept.beside(None, place) if kept else None
    try:
        return describe(
            *(root, ListedImage(*listed), noted), is_labelled=is_labelled, most_pixels=FEW_PIXELS
        )
    except LargeImageError:
        return None


def _prepare(job: list[Any]) -> Callable[[Any], Any]:
    root, *kept = job
    images = KeptImageArray(Path(kept[0]), kept[1]) if kept else None
    return partial(_describe_file, Path(root), images)


if __name__ == "__main__":
    answer_parent(_prepare)
