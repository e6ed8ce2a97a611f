"""The parts of a batch that the processes of a training compute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.training.training_data import DividedOrder


def _parts(images: int, size: int) -> list[DividedOrder]:
    order = BatchOrder(np.arange(images), images, seed=0, first_step=0)
    return [DividedOrder(order, rank, size, mixing=False) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("images", [2, 3, 5, 14, 31])
def test_parts_cover_the_batch_once(images: int, size: int) -> None:
    """The parts that count are the batch in its order; the shares add up to 1."""
    loaded, shares = [], 0.0
    whole = next(iter(_parts(images, 1)[0]))
    for divided in _parts(images, size):
        part, keys = divided.at(0), next(iter(divided))
        assert len(keys) == part.stop - part.start >= 2
        loaded += keys if part.counts else []
        shares += sum(share for _, share in part.micro_batches(1))
    assert loaded == whole
    assert shares == pytest.approx(1.0)


def test_another_number_of_processes_resumes_with_the_same_batches() -> None:
    """From any step on, also with the smaller last batch of an epoch, as far as two epochs."""

    def batches(first_step: int, size: int) -> list[list[tuple[int, int]]]:
        order = BatchOrder(np.arange(31), 9, seed=4, first_step=first_step)
        ranks = [DividedOrder(order, rank, size, mixing=False) for rank in range(size)]
        steps = range(first_step, 2 * order.steps_per_epoch)
        counted = [[divided.at(step).counts for step in steps] for divided in ranks]
        loaded = [list(itertools.islice(divided, len(steps))) for divided in ranks]
        return [
            [key for rank in range(size) if counted[rank][index] for key in loaded[rank][index]]
            for index in range(len(steps))
        ]

    whole = batches(0, 1)
    assert len({tuple(each) for each in whole}) == len(whole) == 8
    for first_step, size in itertools.product((0, 3, 5), (1, 2, 3, 4)):
        assert batches(first_step, size) == whole[first_step:]


def test_all_processes_have_as_many_micro_batches() -> None:
    """Batch norm over all processes needs the same number of passes in each."""
    for images, parts in itertools.product((5, 9, 16), (1, 2, 3, 8)):
        counts = {len(list(divided.at(0).micro_batches(parts))) for divided in _parts(images, 3)}
        assert len(counts) == 1
