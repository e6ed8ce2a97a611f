"""Which images are in which batch: it depends only on (seed, epoch), so any step can be the first.

An image is named by its draw: its row in the store, plus the number of the store's rows for each
time that it has been drawn before in the same epoch. So each draw is augmented in its own way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]


def row_of(draw: int, stored: int) -> int:
    """Return the row of a draw in a store of so many images."""
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
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, first_step: int) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.first_step = first_step
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
        while True:
            draws = self.draws(np.random.default_rng([self.seed, epoch]))
            for batch in range(skipped, self.steps_per_epoch):
                last = batch + 1 == self.steps_per_epoch
                end = len(draws) if last else (batch + 1) * self.batch_size
                chosen = draws[batch * self.batch_size : end]
                yield [(epoch, int(draw)) for draw in chosen]
            epoch, skipped = epoch + 1, 0

    def draws(self, generator: np.random.Generator) -> Rows:
        """Return the draws of an epoch in order, as many as there are rows."""
        return generator.permutation(self.rows)


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
    """

    def __init__(
        self, rows: Rows, batch_size: int, seed: int, first_step: int, labels: Rows
    ) -> None:
        super().__init__(rows, batch_size, seed, first_step)
        self._stored = len(labels)
        own = labels[rows]
        self._by_class = [rows[own == label] for label in np.unique(own)]

    def draws(self, generator: np.random.Generator) -> Rows:
        """Return the draws of an epoch in order, as many as there are rows."""
        share, more = divmod(len(self.rows), len(self._by_class))
        longer = set(generator.permutation(len(self._by_class))[:more].tolist())
        parts = [
            self._of_class(rows, share + (number in longer), generator)
            for number, rows in enumerate(self._by_class)
        ]
        return generator.permutation(np.concatenate(parts))

    def _of_class(self, rows: Rows, count: int, generator: np.random.Generator) -> Rows:
        rounds = [
            generator.permutation(rows) + time * self._stored
            for time in range(-(-count // len(rows)))
        ]
        return np.concatenate([*rounds, rows[:0]])[:count]
