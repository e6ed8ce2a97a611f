"""The images of a store that is complete, of whichever kind it is, or of several as one.

For a training run, they are read ahead in the background, in large pieces and in the order of the
file, while the training computes. So a disk is read at its full speed, where a shuffled batch would
wait for one small read after another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from patchline.pipeline.data.store.packed_files import PACKED_FILE, IndexedImages, PackedImages
from patchline.pipeline.data.store.store_shards import IMAGES_FILE, Pixels
from patchline.pipeline.data.store.streamed_images import LocalPages, StreamedImages
from patchline.pipeline.data.store.streamed_records import STREAMED_FILE
from patchline.pipeline.workspace.files.stored_images import StoredImages

Rows = np.ndarray[Any, np.dtype[np.int64]]


def is_streamed(store: Path) -> bool:
    """Return whether the images of a store are on an object store."""
    return (store / STREAMED_FILE).exists()


def open_images(
    store: Path, threads: int | None = None, pages: LocalPages | None = None
) -> StoredImages:
    """Return the images (N, H, W, C), mapped from disk and read-only.

    Args:
        store: the folder.
        threads: the number of threads that decode packed images; by default one for each processor.
        pages: the pages on this machine that hold images of a streamed store, if there are some.
    """
    if is_streamed(store):
        return StreamedImages(store, threads, pages)
    if (store / PACKED_FILE).exists():
        return PackedImages(store, threads)
    images: Pixels = np.load(store / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
    return images


class JoinedImages(IndexedImages):
    """The images of some stores.

    Args:
        parts: the stores, whose images have one shape.
    """

    def __init__(self, parts: Sequence[StoredImages]) -> None:
        self.parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        _, height, width, channels = parts[0].shape
        super().__init__((int(self._ends[-1]), height, width, channels))

    def _read(self, rows: Rows, images_NHWC: Pixels) -> None:
        for number, places, own_rows in self.divided(rows):
            images_NHWC[places] = self.parts[number][own_rows]

    def divided(self, rows: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """Yield the number of each store with some of the rows, their places, and its own rows."""
        which = np.searchsorted(self._ends, rows, side="right")
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(which == number)
            if len(places):
                yield number, places, rows[places] - (self._ends[number] - len(part))


def open_stores(
    stores: Sequence[Path], threads: int | None = None, pages: Path | None = None
) -> StoredImages:
    """Return the images of one store or several, mapped from disk and read-only.

    Args:
        stores: the folders of the stores.
        threads: the number of threads, as for `open_images`.
        pages: the folder with images of streamed stores on this machine, if there is one.
    """
    parts = [
        open_images(store, threads, LocalPages(pages, number) if pages else None)
        for number, store in enumerate(stores)
    ]
    return parts[0] if len(parts) == 1 else JoinedImages(parts)


_BYTES_AT_ONCE = 1 << 20


class FileRange(NamedTuple):
    """Bytes of a file."""

    file: Path
    start: int
    stop: int


class ReadAhead:
    """Reads rows ahead, in a thread; a later request replaces one that has not begun.

    Args:
        images: the images of an opened store.
    """

    def __init__(self, images: StoredImages) -> None:
        self._images = images
        self._waiting: Rows | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __call__(self, draws: Rows) -> None:
        """Begin to read the rows of some draws (`batch_order`)."""
        rows = np.unique(draws % len(self._images))
        with self._changed:
            self._waiting = rows
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                rows, self._waiting = self._waiting, None
            if rows is not None:
                self._read(rows)

    def _read(self, rows: Rows) -> None:
        """Read the rows; what cannot be read is a matter for the batch that needs it."""
        buffer = memoryview(bytearray(_BYTES_AT_ONCE))
        with ExitStack() as opened:
            files: dict[Path, BinaryIO] = {}
            try:
                for file, start, stop in ranges_of(self._images, rows):
                    if file not in files:
                        files[file] = opened.enter_context(file.open("rb", buffering=0))
                    files[file].seek(start)
                    for left in range(stop - start, 0, -_BYTES_AT_ONCE):
                        files[file].readinto(buffer[:left])  # type: ignore[attr-defined]  # raw
                    if self._waiting is not None:  # its turn has come
                        return
            except OSError:
                return


def ranges_of(images: StoredImages, rows: Rows) -> Iterator[FileRange]:
    """Yield where the rows are kept, in the order of the files; neighbours together.

    Args:
        images: the images of an opened store.
        rows: the rows in ascending order, each once.
    """
    if isinstance(images, PackedImages):
        yield from (FileRange(*where) for where in images.ranges_of(rows))
    elif isinstance(images, JoinedImages):
        for number, _, own_rows in images.divided(rows):
            yield from ranges_of(images.parts[number], own_rows)
    elif isinstance(images, np.memmap) and images.filename is not None:
        row_bytes = images[0].nbytes if len(images) else 0
        for neighbours in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            start, stop = (images.offset + int(row) * row_bytes for row in neighbours[[0, -1]])
            yield FileRange(Path(images.filename), start, stop + row_bytes)
