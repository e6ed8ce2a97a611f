"""The images of a store that is complete, of whichever kind it is, or of several as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.store.decoded_files import IMAGES_FILE
from patchline.pipeline.data.store.local_pages import LocalPages
from patchline.pipeline.data.store.packed_files import PACKED_FILE, PackedImages
from patchline.pipeline.data.store.store_shards import Pixels
from patchline.pipeline.data.store.streamed_images import StreamedImages
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
        threads: that decode packed images; by default one for each processor.
        pages: with images of a streamed store, if there are some on this machine.
    """
    if is_streamed(store):
        return StreamedImages(store, threads, pages)
    if (store / PACKED_FILE).exists():
        return PackedImages(store, threads)
    images: Pixels = np.load(store / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
    return images


class JoinedImages:
    """The images (N, H, W, C) of some stores.

    Args:
        parts: the stores, whose images have one shape.
    """

    def __init__(self, parts: Sequence[StoredImages]) -> None:
        self._ends = np.cumsum([len(part) for part in parts])
        self.parts = parts
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an image (H, W, C), or several (n, H, W, C) for a slice or an array of rows."""
        rows = np.asarray(key) if isinstance(key, list) else key
        if not (isinstance(rows, np.ndarray) and rows.dtype.kind in "iu"):
            rows = np.arange(len(self))[rows]
        if np.ndim(rows) == 0:
            one: np.ndarray[Any, np.dtype[np.uint8]] = self[np.array([rows])][0]
            return one
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for part, places, own_rows in self.divided(rows):
            images[places] = part[own_rows]
        return images

    def divided(self, rows: Rows) -> Iterator[tuple[StoredImages, Rows, Rows]]:
        """Yield each store that has some of the rows, their places, and its own rows."""
        which = np.searchsorted(self._ends, rows, side="right")
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(which == number)
            if len(places):
                yield part, places, rows[places] - (self._ends[number] - len(part))


def open_stores(
    stores: Sequence[Path], threads: int | None = None, pages: Path | None = None
) -> StoredImages:
    """Return the images of one store or several, mapped from disk and read-only.

    Args:
        stores: their folders.
        threads: as for `open_images`.
        pages: the folder with images of streamed stores on this machine, if there is one.
    """
    parts = [
        open_images(store, threads, LocalPages(pages, number) if pages else None)
        for number, store in enumerate(stores)
    ]
    return parts[0] if len(parts) == 1 else JoinedImages(parts)
