"""The images of a streamed store, decoded when they are indexed, and the pages that are kept here.

A page holds the images of some batches that follow each other. It is fetched before the first of
them is needed, and removed when the training has moved on; so the space is bounded, whatever the
size of the store. The process that trains fetches pages, and its data-loader workers read them.

    .patchline/pages/0b1c…/page-000012-0/     rows.npy, starts.npy and the images: records.bin
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.reading.resizing import Pixels
from patchline.pipeline.data.store.packed_files import DecodedWhenUsed, unpack_image
from patchline.pipeline.data.store.streamed_records import Bytes, Records, Rows, StreamedRecords
from patchline.pipeline.workspace import cache_limit
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.workspace_folder import make_folder, place

_FOLDER, _LOCK = "pages", "lock"
_ROWS, _STARTS, _RECORDS = "rows.npy", "starts.npy", "records.bin"
_AT_ONCE = 64 << 20
"""Bytes of a page in memory."""
_PARTS = round(cache_limit.PAGES_SHARE / cache_limit.PAGE_SHARE)
"""Of the space: three pages, being used up, used, and fetched; and the images that are kept."""
_MOST_OF_THE_DISK = 0.9


Flags = np.ndarray[Any, np.dtype[np.bool_]]


class PagesFolder:
    """The pages of one training process, in a folder that goes with it.

    Attributes:
        page_bytes: bytes of a page, at most.
    """

    def __init__(self) -> None:
        top = place() / _FOLDER
        with storage_errors(top):
            make_folder(top)
            _remove_abandoned(top)
            self.folder = Path(tempfile.mkdtemp(dir=top))
        self._lock = file_locks.acquire(self.folder / _LOCK)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        free = shutil.disk_usage(top).free * _MOST_OF_THE_DISK
        space = min(cache_limit.limit() * cache_limit.PAGES_SHARE, free) / processes
        self.page_bytes = max(1, int(space / _PARTS))

    def fetch(
        self,
        number: int,
        part: int,
        records: StreamedRecords,
        rows: Rows,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write a page with some rows of a store.

        Args:
            number: the number of the page, from 0.
            part: the number of the store among several; 0 if there is one.
            records: the store's images on the object store.
            rows: the rows of the images to write, each once.
            is_over: returns whether nobody needs the page any more.

        Raises:
            StorageError: if the object store does not answer, or the disk is full.
        """
        target = self.folder / f"page-{number:06}-{part}"
        building = self.folder / f".{target.name}"
        ordered = records.in_order(rows)
        ends = np.cumsum(records.sizes_of(ordered))
        cuts = np.searchsorted(ends, np.arange(_AT_ONCE, ends[-1] if len(ends) else 0, _AT_ONCE))
        with storage_errors(building):
            building.mkdir(exist_ok=True)
            with (building / _RECORDS).open("wb") as opened:
                for piece in np.split(ordered, cuts):
                    if is_over():
                        return
                    opened.write(records.read(piece).data.data)
            np.save(building / _ROWS, ordered, allow_pickle=False)
            np.save(building / _STARTS, np.concatenate(([0], ends)), allow_pickle=False)
            building.rename(target)

    def drop(self, number: int) -> None:
        """Remove a page; a process that has it open can read it until it closes it."""
        for page in self.folder.glob(f"page-{number:06}-*"):
            shutil.rmtree(page, ignore_errors=True)

    def close(self) -> None:
        """Remove all pages."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


class LocalPages:
    """The pages in a folder that hold images of one store, for a process that reads them.

    Args:
        folder: the folder of the pages.
        part: the number of the store among several; 0 if there is one.
    """

    def __init__(self, folder: Path, part: int) -> None:
        self.folder, self.part = folder, part
        self._open: dict[str, _HeldRows] = {}

    def find(self, rows: Rows) -> dict[int, memoryview]:
        """Return what the pages hold of some rows, by row."""
        found = self._find(rows)
        if len(found) < len(rows):
            self._refresh()
            found = self._find(rows)
        return found

    def _find(self, rows: Rows) -> dict[int, memoryview]:
        found = dict[int, memoryview]()
        for page in reversed(self._open.values()):
            found |= page.find(rows)
        return found

    def _refresh(self) -> None:
        """Open new pages, and close those that were removed."""
        there = sorted(each.name for each in self.folder.glob(f"page-*-{self.part}"))
        for name in self._open.keys() - set(there):
            del self._open[name]
        for name in there:
            if name not in self._open:
                with contextlib.suppress(OSError):  # it was removed just now
                    self._open[name] = _open_page(self.folder / name)


class _HeldRows:
    """Rows of a store that are held on this machine.

    Args:
        rows: the rows in ascending order.
        starts: the position in the data of each row's first byte.
        ends: the position in the data after each row's last byte.
        data: the bytes of all rows.
    """

    def __init__(self, rows: Rows, starts: Rows, ends: Rows, data: Bytes) -> None:
        self._rows, self._starts, self._ends, self._data = rows, starts, ends, data

    def find(self, rows: Rows) -> dict[int, memoryview]:
        """Return what is held of some rows, by row."""
        places, known = self._held_places(rows)
        pairs = zip(rows[known].tolist(), places[known].tolist(), strict=True)
        view = self._data.data
        return {row: view[self._starts[at] : self._ends[at]] for row, at in pairs}

    def _held_places(self, rows: Rows) -> tuple[Rows, Flags]:
        return self._places(rows)

    def _places(self, rows: Rows) -> tuple[Rows, Flags]:
        """Return the places of some rows, and whether they are among these."""
        if not len(self._rows):
            return np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        places = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        return places, self._rows[places] == rows


class KeptImages(_HeldRows):
    """Images that are kept from their first use on, such as those to validate on.

    Args:
        rows: the rows of the images that may be kept.
        records: the store's images on the object store.
        file: the file to create for the images.
        most_bytes: the largest number of bytes that is kept.
    """

    def __init__(self, rows: Rows, records: StreamedRecords, file: Path, most_bytes: int) -> None:
        self._bytes_left = most_bytes
        rows = np.unique(rows)
        ends = np.cumsum(records.sizes_of(rows))
        self._is_there = np.zeros(len(rows), bool)
        with storage_errors(file):
            size = max(1, int(ends[-1])) if len(ends) else 1
            data: Bytes = np.memmap(file, np.uint8, "w+", shape=size)
        super().__init__(rows, np.concatenate(([0], ends[:-1])), ends, data)

    def _held_places(self, rows: Rows) -> tuple[Rows, Flags]:
        places, known = self._places(rows)
        return places, known & self._is_there[places]

    def keep(self, records: Records) -> None:
        """Keep those of some images that may be kept."""
        places, known = self._places(records.rows)
        for number in np.flatnonzero(known):
            place, size = places[number], records.starts[number + 1] - records.starts[number]
            if self._is_there[place] or size > self._bytes_left:
                continue
            self._bytes_left -= int(size)
            data = records.data[records.starts[number] : records.starts[number + 1]]
            self._data[self._starts[place] : self._ends[place]] = data
            self._is_there[place] = True


def _open_page(page: Path) -> _HeldRows:
    rows, starts = (np.load(page / name) for name in (_ROWS, _STARTS))
    order = np.argsort(rows)
    data = np.memmap(page / _RECORDS, np.uint8, "r")
    return _HeldRows(rows[order], starts[:-1][order], starts[1:][order], data)


def _remove_abandoned(top: Path) -> None:
    """Remove the pages of processes that were killed."""
    for folder in top.iterdir():
        if (folder / _LOCK).exists():  # else it was made just now
            with file_locks.try_lock(folder / _LOCK) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)


class StreamedImages(DecodedWhenUsed):
    """The images of a streamed store.

    An image that is in none of the pages is read from the object store when it is indexed.

    Args:
        folder: the folder of the store.
        threads: the number of threads that decode; by default one for each processor.
        pages: the pages on this machine that hold images of the store, if there are some.

    Attributes:
        kept: images that stay on this machine once they were read; none if it is None.
    """

    def __init__(
        self, folder: Path, threads: int | None = None, pages: LocalPages | None = None
    ) -> None:
        self.records = StreamedRecords(folder)
        super().__init__(self.records.index.shape, self.records.index.resize, threads)
        self._pages = pages
        self.kept: KeptImages | None = None

    def _decoded(self, rows: Rows) -> Iterable[Pixels]:
        data = self._kept_as(np.unique(rows))
        images = [data[row] for row in rows.tolist()]
        if self.records.index.packed:
            return self._mapped(self._unpacked, images)
        return (np.frombuffer(each, np.uint8).reshape(self.shape[1:]) for each in images)

    def _unpacked(self, image: memoryview) -> Pixels:
        return unpack_image(bytes(image), self._spec, self.records.folder)

    def _kept_as(self, rows: Rows) -> dict[int, memoryview]:
        """Return rows as they are kept: of pages, of what was kept, or of the object store."""
        found = dict[int, memoryview]()
        for kept in (self._pages, self.kept):
            if kept is not None and len(found) < len(rows):
                found |= kept.find(rows)
        missing = np.array([row for row in rows.tolist() if row not in found], np.int64)
        if len(missing):
            records = self.records.read(missing)
            if self.kept is not None:
                self.kept.keep(records)
            view = records.data.data
            for number, row in enumerate(records.rows.tolist()):
                found[row] = view[records.starts[number] : records.starts[number + 1]]
        return found
