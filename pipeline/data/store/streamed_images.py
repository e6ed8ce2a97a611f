"""The images of a streamed store, decoded when they are indexed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.data.reading.resizing import Pixels
from patchline.pipeline.data.store.local_pages import KeptImages, LocalPages
from patchline.pipeline.data.store.packed_files import unpacked
from patchline.pipeline.data.store.store_shards import Shape, StoreSpec
from patchline.pipeline.data.store.streamed_records import Rows, StreamedRecords


class StreamedImages:
    """The images of a streamed store, uint8 (N, H, W, C).

    An image that is in none of the pages is read from the object store when it is indexed.

    Args:
        folder: of the store.
        threads: that decode; by default one for each processor.
        pages: on this machine, if there are some.

    Attributes:
        kept: images that stay on this machine once they were read; none if it is None.
    """

    def __init__(
        self, folder: Path, threads: int | None = None, pages: LocalPages | None = None
    ) -> None:
        self.records = StreamedRecords(folder)
        index = self.records.index
        self.shape: Shape = index.shape
        _, height, width, channels = index.shape
        self._spec = StoreSpec(channels, height, width, index.resize)
        self._pages = pages
        self._threads = threads or processors()
        self.kept: KeptImages | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Pixels:
        """Return an image (H, W, C), or several (n, H, W, C) for a slice or an array of rows."""
        if isinstance(key, slice):
            return self._several(np.arange(*key.indices(len(self))))
        if np.ndim(key) == 0:
            image: Pixels = self._several(np.array([operator.index(key)]))[0]
            return image
        rows = np.asarray(key)
        return self._several(np.flatnonzero(rows) if rows.dtype == np.bool_ else rows)

    def _several(self, rows: Rows) -> Pixels:
        if len(rows) and not (-len(self) <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"there is no image {rows} among {len(self)}")
        rows = rows % len(self)
        data = self._kept_as(np.unique(rows))
        images_NHWC = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for position, image_HWC in enumerate(self._decoded([data[row] for row in rows.tolist()])):
            images_NHWC[position] = image_HWC
        return images_NHWC

    def _kept_as(self, rows: Rows) -> dict[int, memoryview]:
        """Return rows as they are kept: of pages, of what was kept, or of the object store."""
        found = dict[int, memoryview]()
        for cache in (self._pages, self.kept):
            if cache is not None and len(found) < len(rows):
                found |= cache.find(rows)
        missing = np.array([row for row in rows.tolist() if row not in found], np.int64)
        if len(missing):
            records = self.records.read(missing)
            if self.kept is not None:
                self.kept.keep(records)
            view = records.data.data
            for number, row in enumerate(records.rows.tolist()):
                found[row] = view[records.starts[number] : records.starts[number + 1]]
        return found

    def _decoded(self, images: Sequence[memoryview]) -> Any:
        if not self.records.index.packed:
            return (np.frombuffer(each, np.uint8).reshape(self.shape[1:]) for each in images)
        if self._threads == 1 or len(images) < 2:  # noqa: PLR2004 - nothing to share
            return map(self._unpacked, images)
        return self._pool.map(self._unpacked, images)

    def _unpacked(self, image: memoryview) -> Pixels:
        return unpacked(bytes(image), self._spec, self.records.folder)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads)
