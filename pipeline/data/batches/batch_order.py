"""Which images are in which batch: it depends only on (seed, epoch), so any step can be the first.

An image is named by its draw: its row in the store, plus the number of the store's rows for each
time that it has been drawn before in the same epoch. So each draw is augmented in its own way.

The images of an epoch are shuffled all together, or, where they would not fit the memory, in
windows (`shuffle_windows`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self, TypeVar

import numpy as np

from patchline.pipeline.data.batches.shuffle_windows import Rows, ShuffleWindows

_Draws = TypeVar("_Draws", int, Rows)


def row_of(draw: _Draws, stored: int) -> _Draws:
    """Return the row of a draw, or of several, in a store of so many images."""
    return draw % stored


class BatchOrder:
    """Yield batches of (epoch, draw) endlessly, from any step; the last of an epoch is smaller.

    Every image is drawn once in an epoch. A single image left over joins the previous batch,
    because batch norm needs at least two.

    Args:
        rows: of the training images in the store.
        batch_size: images in a batch.
        seed: of the run.
        first_step: where to begin.
        windows: in which the images are shuffled; by default all together.

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
        rows: of the training images in the store.
        batch_size: images in a batch.
        seed: of the run.
        first_step: where to begin.
        labels: class index of every row of the store.
        windows: in which the images are shuffled; by default all together.
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
