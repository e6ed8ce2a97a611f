"""Windows of a shuffled epoch: samples of the whole store, read once, whatever the first step."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.data.batches.batch_order import (
    BLOCK_BYTES,
    BatchOrder,
    Rows,
    ShuffleWindows,
)


def epoch_of(order: BatchOrder) -> Rows:
    """Return the draws of the order's first epoch."""
    batches = islice(iter(order), order.steps_per_epoch)
    return np.array([draw for batch in batches for _, draw in batch])


@given(
    stored=st.integers(20, 400),
    count=st.integers(2, 12),
    block_rows=st.integers(1, 9),
    seed=st.integers(0, 1000),
    first_step=st.integers(0, 60),
)
def test_an_epoch_reads_each_window_once(
    stored: int, count: int, block_rows: int, seed: int, first_step: int
) -> None:
    """Every image is drawn once, no block returns after its window, and any step may be first."""
    windows = ShuffleWindows(count, stored, block_rows)
    rows = np.flatnonzero(np.arange(stored) % 7 != 3)
    order = BatchOrder(rows, 4, seed, 0, windows)
    drawn = epoch_of(order)
    assert sorted(drawn) == rows.tolist()
    announced: list[Rows] = []
    order.on_window = announced.append
    assert np.array_equal(epoch_of(order), drawn)
    # All windows of the epoch, then the first one of the next epoch.
    assert np.array_equal(np.concatenate(announced[:-1]), drawn)
    window_of = {row: number for number, window in enumerate(announced[:-1]) for row in window}
    for block in range(-(-stored // block_rows)):
        assert len({window_of[row] for row in rows if row // block_rows == block}) <= 1
    order.on_window = None
    tail = list(islice(iter(order.from_step(first_step)), 5))
    assert tail == list(islice(iter(order), first_step + 5))[first_step:]


def test_each_window_is_a_sample_of_a_store_sorted_by_class() -> None:
    """The share of a class in a window differs by a block or two from its share of the store.

    Within a window, rows of one block are not together, and epochs differ.
    """
    labels = np.repeat(np.arange(10), 5000)
    assert ShuffleWindows.of(1.0, len(labels), 3) is None  # one window shuffles as ever
    assert ShuffleWindows.of(0.1, len(labels), BLOCK_BYTES) == ShuffleWindows(10, 50_000, 1)
    windows = ShuffleWindows.of(0.1, len(labels), image_bytes=3072)
    assert windows is not None
    assert windows.block_rows == 19  # 256 blocks in a window and more
    order = BatchOrder(np.arange(50_000), 50, 3, 0, windows)
    drawn = epoch_of(order)
    for start in range(0, 45_000, 5000):
        shares = np.bincount(labels[drawn[start : start + 5000]], minlength=10)
        assert np.abs(shares - 500).max() <= 2 * windows.block_rows
    assert np.mean(np.diff(drawn) == 1) < 0.02
    assert not np.array_equal(drawn, epoch_of(order.from_step(order.steps_per_epoch)))
