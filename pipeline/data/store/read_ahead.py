"""Reading rows of a store into the system's file cache before they are needed.

They are read in the background, in large pieces and in the order of the file, while the training
computes. So a disk is read at its full speed, where a shuffled batch would wait for one small read
after another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from patchline.pipeline.data.store.opened_images import JoinedImages
from patchline.pipeline.data.store.packed_files import PackedImages
from patchline.pipeline.workspace.files.stored_images import StoredImages

Rows = np.ndarray[Any, np.dtype[np.int64]]

_BYTES_AT_ONCE = 1 << 20


class FileRange(NamedTuple):
    """Bytes of a file."""

    file: Path
    start: int
    stop: int


class ReadAhead:
    """Reads rows ahead, in a thread; a later request replaces one that has not begun.

    Args:
        images: of an opened store.
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
        images: of an opened store.
        rows: sorted, each once.
    """
    if isinstance(images, PackedImages):
        yield from (FileRange(*where) for where in images.ranges_of(rows))
    elif isinstance(images, JoinedImages):
        for part, _, own_rows in images.divided(rows):
            yield from ranges_of(part, own_rows)
    elif isinstance(images, np.memmap) and images.filename is not None:
        row_bytes = images[0].nbytes if len(images) else 0
        for neighbours in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            start, stop = (images.offset + int(row) * row_bytes for row in neighbours[[0, -1]])
            yield FileRange(Path(images.filename), start, stop + row_bytes)
