"""Which images are in which batch: it depends only on (seed, epoch), so any step can be the first.

The images of an epoch are shuffled all together, or, where they would not fit the memory, in
windows. Where all are shuffled together, every epoch reads the whole store in random order. In
windows, an epoch is a sequence of parts of the store, each of which is read once, ahead of its use:
blocks of consecutive rows are assigned to windows by chance, then the rows of a window are
shuffled. A store lists its images class by class, as a folder does, so a window of random blocks
would have too many images of some classes. Each window therefore takes one of every few consecutive
blocks, so that it is a sample of the whole store.

An image is named by its draw: its row in the store, plus the number of the store's rows for each
time that it has been drawn before in the same epoch. So each draw is augmented in its own way.

The batches of a streamed store are divided into pages (`streamed_images`). While one is used, the
next one is fetched in the background. Where images are shuffled in windows, no page holds batches
of two windows, so that a page is a number of large pieces of the store. The batches themselves are
those of the order, whatever the pages, and every process fetches only what it computes itself.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from patchline.pipeline.data.store.opened_images import JoinedImages
from patchline.pipeline.data.store.streamed_images import PagesFolder, StreamedImages
from patchline.pipeline.data.store.streamed_records import StreamedRecords
from patchline.pipeline.workspace.files.stored_images import StoredImages

Rows = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_BYTES = 1 << 22
"""Bytes of images in a block, at most: 4 MiB, which disks and object stores read at full speed."""
_FEWEST_BLOCKS = 256
"""Blocks in a window, at least, so that it has about as many images of each class as any other."""


@dataclass(frozen=True)
class ShuffleWindows:
    """How the rows of a store are divided into windows."""

    count: int
    """Windows in an epoch."""
    stored: int
    """Rows of the store."""
    block_rows: int
    """Consecutive rows that are always in one window."""

    @classmethod
    def of(cls, fraction: float, stored: int, image_bytes: int) -> ShuffleWindows | None:
        """Return the windows of a store; None if one holds all images.

        Args:
            fraction: the largest fraction of the images that is shuffled together.
            stored: the number of rows of the store.
            image_bytes: the size of one decoded image in bytes.
        """
        count = int(np.ceil(1 / fraction - 1e-9))
        if count == 1:
            return None
        block_rows = min(BLOCK_BYTES // image_bytes, stored // (count * _FEWEST_BLOCKS))
        return cls(count, stored, max(1, block_rows))

    def sorted(self, shuffled: Rows, generator: np.random.Generator) -> tuple[Rows, Rows]:
        """Return the draws of an epoch by window, and where each window ends.

        Args:
            shuffled: the draws in random order, which they keep within a window.
            generator: the source of the random numbers that assign the blocks to windows.
        """
        blocks = -(-self.stored // self.block_rows)
        rounds = np.tile(np.arange(self.count), (-(-blocks // self.count), 1))
        window_of_block = generator.permuted(rounds, axis=1).ravel()
        windows = window_of_block[shuffled % self.stored // self.block_rows]
        sizes = np.bincount(windows, minlength=self.count)
        by_window = shuffled[np.argsort(windows, kind="stable")]
        return by_window, np.cumsum(sizes[sizes > 0])


_Draws = TypeVar("_Draws", int, Rows)


def row_of(draw: _Draws, stored: int) -> _Draws:
    """Return the row of a draw, or of several, in a store of so many images."""
    return draw % stored


class BatchOrder:
    """Yield batches of (epoch, draw) endlessly, from any step; the last of an epoch is smaller.

    Every image is drawn once in an epoch. A single image left over joins the previous batch,
    because batch norm needs at least two.

    Args:
        rows: the rows of the training images in the store.
        batch_size: the number of images in a batch.
        seed: the run's seed.
        first_step: the step to begin with.
        windows: the windows in which the images are shuffled; by default all are shuffled together.

    Attributes:
        on_window: called with the draws of a window when the window before it begins, so that they
            can be read ahead, and with those of the first one.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        seed: int,
        first_step: int,
        windows: ShuffleWindows | None = None,
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.first_step = first_step
        self.windows = windows
        self.on_window: Callable[[Rows], None] | None = None
        whole, left_over = divmod(len(rows), batch_size)
        joined = left_over == 1 and batch_size > 1
        self.steps_per_epoch = max(1, whole + (left_over > 0 and not joined))

    def from_step(self, step: int) -> Self:
        """Return the same order, beginning at another step."""
        again = copy.copy(self)
        again.first_step = step
        return again

    def images_at(self, step: int) -> int:
        """Return the number of images in the batch of a step."""
        batch = step % self.steps_per_epoch
        last = batch + 1 == self.steps_per_epoch
        return len(self.rows) - batch * self.batch_size if last else self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, skipped = divmod(self.first_step, self.steps_per_epoch)
        now, then = self._epoch(epoch), None
        begun = now.window_at(skipped * self.batch_size)
        self._announce(now, begun)
        while True:
            for batch in range(skipped, self.steps_per_epoch):
                last = batch + 1 == self.steps_per_epoch
                start = batch * self.batch_size
                end = len(now.draws) if last else start + self.batch_size
                while begun <= now.window_at(end - 1):
                    begun += 1
                    if begun < len(now.ends):
                        self._announce(now, begun)
                    elif self.on_window is not None:
                        then = self._epoch(epoch + 1)
                        self._announce(then, 0)
                yield [(epoch, draw) for draw in now.draws[start:end].tolist()]
            epoch, skipped, begun = epoch + 1, 0, 0
            now, then = then or self._epoch(epoch), None

    def draws(self, generator: np.random.Generator) -> Rows:  # noqa: ARG002 - chance of others
        """Return the draws of an epoch, as many as there are rows; they are shuffled afterwards."""
        return self.rows

    def _epoch(self, epoch: int) -> _Epoch:
        generator = np.random.default_rng([self.seed, epoch])
        draws = generator.permutation(self.draws(generator))
        if self.windows is None:
            return _Epoch(draws, np.array([len(draws)]))
        return _Epoch(*self.windows.sorted(draws, generator))

    def _announce(self, epoch: _Epoch, window: int) -> None:
        if self.on_window is not None:
            start = epoch.ends[window - 1] if window else 0
            self.on_window(epoch.draws[start : epoch.ends[window]])


class _Epoch(NamedTuple):
    """The draws of an epoch in order, and where each of its windows ends."""

    draws: Rows
    ends: Rows

    def window_at(self, place: int) -> int:
        """Return the window of a place in the order."""
        return int(np.searchsorted(self.ends, place, side="right"))


class BalancedOrder(BatchOrder):
    """Draw every class equally often, in an epoch of as many images as there are.

    The images of a class are drawn in turn, each again only after all others of its class. If the
    classes do not divide the epoch evenly, some have one draw more: others in each epoch.

    Args:
        rows: the rows of the training images in the store.
        batch_size: the number of images in a batch.
        seed: the run's seed.
        first_step: the step to begin with.
        labels: the class index of every row of the store.
        windows: the windows in which the images are shuffled; by default all are shuffled together.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        seed: int,
        first_step: int,
        labels: Rows,
        windows: ShuffleWindows | None = None,
    ) -> None:
        super().__init__(rows, batch_size, seed, first_step, windows)
        self._stored = len(labels)
        own = labels[rows]
        self._by_class = [rows[own == label] for label in np.unique(own)]

    def draws(self, generator: np.random.Generator) -> Rows:
        """Return the draws of an epoch, as many as there are rows; they are shuffled afterwards."""
        share, more = divmod(len(self.rows), len(self._by_class))
        longer = set(generator.permutation(len(self._by_class))[:more].tolist())
        parts = [
            self._of_class(rows, share + (number in longer), generator)
            for number, rows in enumerate(self._by_class)
        ]
        return np.concatenate(parts)

    def _of_class(self, rows: Rows, count: int, generator: np.random.Generator) -> Rows:
        rounds = [
            generator.permutation(rows) + time * self._stored
            for time in range(-(-count // len(rows)))
        ]
        return np.concatenate([*rounds, rows[:0]])[:count]


Batch = list[tuple[int, int]]


class StreamedOrder:
    """Yields the batches of an order.

    Args:
        order: yields batches of (epoch, draw): all of `whole`, or a part of each.
        whole: the order that says where windows begin.
        images: the images of the store, or of all stores as one.
        pages: the folder that the pages are written to.
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
        joined = self._images if isinstance(self._images, JoinedImages) else None
        stores = [self._images] if joined is None else joined.parts
        divided = [(0, rows, rows)] if joined is None else joined.divided(rows)
        for number, _, own in divided:
            images = stores[number]
            if isinstance(images, StreamedImages):
                yield number, images.records, own

    def _fetch(self, number: int, page: _OrderPage) -> None:
        if page.is_ahead:
            for part, records, own in self._parts(self._rows_of(page.batches)):
                self._pages.fetch(number, part, records, own, self._ended.is_set)


class _OrderPage(NamedTuple):
    batches: list[Batch]
    is_ahead: bool
    """Whether its images are fetched before they are needed."""
