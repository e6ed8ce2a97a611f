"""The batches of an order, each once its images are on this machine: those of streamed stores.

The batches are divided into pages (`local_pages`). While one is used, the next one is fetched in
the background. Where images are shuffled in windows, no page holds batches of two windows, so that
a page is a number of large pieces of the store. The batches themselves are those of the order,
whatever the pages, and every process fetches only what it computes itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.shuffle_windows import Rows
from patchline.pipeline.data.store.local_pages import PagesFolder
from patchline.pipeline.data.store.opened_images import JoinedImages
from patchline.pipeline.data.store.streamed_images import StreamedImages
from patchline.pipeline.data.store.streamed_records import StreamedRecords
from patchline.pipeline.workspace.files.stored_images import StoredImages

Batch = list[tuple[int, int]]


class StreamedOrder:
    """Yields the batches of an order.

    Args:
        order: yields batches of (epoch, draw): all of `whole`, or a part of each.
        whole: says where windows begin.
        images: of the stores.
        pages: where the pages are written.
        last_step: returns the step before which the training ends, as far as it is known; nothing
            is fetched ahead beyond it.
    """

    def __init__(
        self,
        order: Iterable[Batch],
        whole: BatchOrder,
        images: StoredImages,
        pages: PagesFolder,
        last_step: Callable[[], int],
    ) -> None:
        self._order, self._whole, self._images = order, whole, images
        self._pages, self._last_step = pages, last_step
        self._begins_window = False
        self._ended = threading.Event()

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches.

        Raises:
            StorageError: if the object store does not answer, or the disk is full.
        """
        self._ended.clear()
        pages, fetcher = self._divided(), ThreadPoolExecutor(1, "pages")
        try:
            number, page = 0, next(pages)
            ready = fetcher.submit(self._fetch, number, page)
            while True:
                ready.result()
                self._pages.drop(number - 2)
                following = next(pages)
                next_ready: Future[None] = fetcher.submit(self._fetch, number + 1, following)
                yield from page.batches
                number, page, ready = number + 1, following, next_ready
        finally:
            self._ended.set()
            fetcher.shutdown(wait=False, cancel_futures=True)

    def _divided(self) -> Iterator[_OrderPage]:
        """Yield pages; beyond the last step, of one batch each, which is not fetched ahead."""
        self._whole.on_window = self._mark_window
        batches, step = iter(self._order), self._whole.first_step
        batch = next(batches)
        while True:
            is_ahead = step < self._last_step()
            page, size = [batch], self._size_of(batch)
            self._begins_window = False
            while True:
                batch, step = next(batches), step + 1
                size += self._size_of(batch)
                is_end = self._begins_window or size > self._pages.page_bytes
                if is_end or not is_ahead or step == self._last_step():
                    break
                page.append(batch)
            yield _OrderPage(page, is_ahead)

    def _mark_window(self, _draws: Rows) -> None:
        self._begins_window = True

    def _size_of(self, batch: Batch) -> int:
        rows = self._rows_of([batch])
        return int(sum(records.sizes_of(own).sum() for _, records, own in self._parts(rows)))

    def _rows_of(self, batches: list[Batch]) -> Rows:
        draws = np.array([draw for batch in batches for _, draw in batch], np.int64)
        return np.unique(draws % len(self._images))

    def _parts(self, rows: Rows) -> Iterator[tuple[int, StreamedRecords, Rows]]:
        """Yield the streamed stores that have some of the rows, with their own rows."""
        for part, images, own in divided(self._images, rows):
            if isinstance(images, StreamedImages):
                yield part, images.records, own

    def _fetch(self, number: int, page: _OrderPage) -> None:
        if page.is_ahead:
            for part, records, own in self._parts(self._rows_of(page.batches)):
                self._pages.fetch(number, part, records, own, self._ended.is_set)


class _OrderPage(NamedTuple):
    batches: list[Batch]
    is_ahead: bool
    """Whether its images are fetched before they are needed."""


def divided(images: StoredImages, rows: Rows) -> Iterator[tuple[int, StoredImages, Rows]]:
    """Yield the number of each store that has some of the rows, its images, and its own rows."""
    if isinstance(images, JoinedImages):
        for part, _, own in images.divided(rows):
            number = next(at for at, each in enumerate(images.parts) if each is part)
            yield number, part, own
    else:
        yield 0, images, rows
