"""Batches: their order and their pixels depend on the seed and the step alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.batch_order import BalancedOrder, BatchOrder, row_of
from patchline.pipeline.data.batches.loader import (
    Batch,
    Feed,
    TokenImages,
    TrainingImages,
    TrainingTokens,
    load_ahead,
    training_batches,
)
from tests.conftest import draw_photo
from tests.patience import until
from tests.pipeline.conftest import image_spec

ROWS = np.array([0, 2, 3, 5, 6, 7, 8, 11, 12, 14, 15])
"""The training rows of a store of sixteen images."""


@pytest.fixture(params=["light", "standard"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> TrainingImages:
    """Return a small store's training split, augmented one by one and in whole batches."""
    np.save(tmp_path / "images.npy", [draw_photo(row % 4, row, 16) for row in range(16)])
    settings = {"erase": 0.5} if request.param == "standard" else {}
    chosen = {"name": request.param, "horizontal_flip": True, **settings}
    return TrainingImages(
        store=tmp_path,
        rows=ROWS,
        targets=np.arange(16) % 4,
        augmentation=PluginChoice.model_validate(chosen),
        image=image_spec(3),
        seed=3,
    )


def batches(
    source: TrainingImages, count: int, batch_size: int = 4, first_step: int = 0
) -> list[Batch]:
    """Return the first batches from a step on."""
    order = BatchOrder(source.rows, batch_size, source.seed, first_step)
    return list(islice(training_batches(order, source, 0), count))


def same(first: list[Batch], second: list[Batch]) -> bool:
    """Return whether two lists of batches hold the same images and labels."""
    return all(
        torch.equal(one, other)
        for pair in zip(first, second, strict=True)
        for one, other in zip(*pair, strict=True)
    )


@given(
    count=st.integers(1, 50),
    batch_size=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    first_step=st.integers(0, 40),
)
def test_every_image_comes_once_an_epoch(
    count: int, batch_size: int, seed: int, first_step: int
) -> None:
    """An epoch has each training row once; a batch of one joins the one before it.

    Beginning at a step gives exactly what a run from the start does from that step on.
    """
    rows = np.arange(count) * 3
    order = BatchOrder(rows, batch_size, seed, 0)
    stream = iter(order)
    for epoch in range(2):
        found = list(islice(stream, order.steps_per_epoch))
        joined = count > batch_size > 1 and count % batch_size == 1
        assert len(found[-1]) == (batch_size + 1 if joined else (count - 1) % batch_size + 1)
        assert all(len(batch) == batch_size for batch in found[:-1])
        assert sorted(chain.from_iterable(found)) == [(epoch, row) for row in rows.tolist()]
    tail = islice(iter(BatchOrder(rows, batch_size, seed, first_step)), 6)
    assert list(tail) == list(islice(iter(order), first_step, first_step + 6))


def test_batch_holds_stored_images_with_their_labels(source: TrainingImages) -> None:
    """Each image of a batch that nothing augments is the stored row, beside its own label."""
    plain = replace(source, augmentation=PluginChoice(name="none"))
    stored = torch.from_numpy(np.load(source.store / "images.npy"))
    keys = islice(iter(BatchOrder(ROWS, 4, source.seed, 0)), 4)
    for batch_keys, (images, labels) in zip(keys, batches(plain, 4), strict=True):
        rows = [row for _, row in batch_keys]
        assert torch.equal(images, stored[rows])
        assert labels.tolist() == [row % 4 for row in rows]


def test_pixels_depend_on_the_epoch_and_not_on_the_batch_size(source: TrainingImages) -> None:
    """Small batches hold the images of one large batch; a second epoch shows others."""
    small, large = batches(source, 5, 2), batches(source, 2, len(ROWS))
    images, labels = (torch.cat(parts) for parts in zip(*small, strict=True))
    assert same([(images, labels)], large[:1])
    epochs = [{image.numpy().tobytes() for image in images} for images, _ in large]
    assert not epochs[0] & epochs[1]


def test_resumed_batches_equal_the_uninterrupted_ones(source: TrainingImages) -> None:
    """Batches from the fifth step on are those of a run from the start, also loaded ahead."""
    whole = batches(source, 8)
    assert same(batches(source, 3, first_step=5), whole[5:])
    order = BatchOrder(source.rows, 4, source.seed, 5)
    ahead = training_batches(order, source, workers=0, feed=Feed(ahead=1))
    assert same(list(islice(ahead, 3)), whole[5:])


@pytest.mark.parametrize("first_step", [0, 5])
def test_a_device_that_keeps_images_gets_the_same_batches(
    source: TrainingImages, first_step: int
) -> None:
    """Over three epochs, although each image is loaded once; also where images come twice."""
    feed = Feed(ahead=2, augments=True, keeps=True)
    orders: tuple[BatchOrder, ...] = (
        BatchOrder(source.rows, 4, source.seed, first_step),
        BalancedOrder(source.rows, 4, source.seed, first_step, np.minimum(np.arange(16) % 4, 1)),
    )
    for order in orders:
        plain, kept = (
            list(islice(training_batches(order, source, 0, feed=each), 9)) for each in (None, feed)
        )
        assert same(plain, kept)


@pytest.mark.parametrize("keeps", [False, True])
def test_single_images_are_changed_on_a_device_that_can(
    source: TrainingImages, *, keeps: bool
) -> None:
    """By the numbers of each draw, wherever the images are: the same batches, near to the CPU's."""
    policy = PluginChoice.model_validate({"name": "randaugment", "horizontal_flip": True})
    changed = replace(source, augmentation=policy)
    order = BatchOrder(source.rows, 4, source.seed, 0)
    on_device = list(
        islice(training_batches(order, changed, 0, feed=Feed(2, augments=True, keeps=keeps)), 6)
    )
    for (images, labels), (expected, own) in zip(on_device, batches(changed, 6), strict=True):
        assert torch.equal(labels, own)
        assert ((images.int() - expected.int()).abs() <= 1).float().mean() > 0.95


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    first_step=st.integers(0, 30),
)
def test_balanced_draws_every_class_equally_often(
    counts: list[int], seed: int, first_step: int
) -> None:
    """In each epoch classes differ by one draw at most, and images of a class likewise."""
    labels = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(len(labels))
    order = BalancedOrder(rows, 4, seed, 0, labels)
    epoch = list(islice(iter(order), order.steps_per_epoch))
    draws = [draw for batch in epoch for _, draw in batch]
    assert len(draws) == len(set(draws)) == len(rows)  # no draw is augmented like another
    drawn = np.array([row_of(draw, len(labels)) for draw in draws])
    assert np.ptp(np.bincount(labels[drawn])) <= 1
    of_image = np.bincount(drawn, minlength=len(rows))
    assert all(np.ptp(of_image[labels == label]) <= 1 for label in range(len(counts)))
    again = list(islice(iter(order.from_step(first_step)), 3))
    assert again == list(islice(iter(order), first_step + 3))[first_step:]


def test_tokens_loaded_ahead_are_the_same_ones() -> None:
    """Each image is shown in the view of its epoch, whether or not a thread loads the batches."""
    tokens_MVND = np.arange(11 * 3 * 4 * 2, dtype=np.float16).reshape(11, 3, 4, 2)
    stored = TokenImages(tokens_MVND, ROWS, stored=16)
    source, order = TrainingTokens(stored, np.arange(16) % 3, seed=1), BatchOrder(ROWS, 2, 1, 5)
    alone, ahead = (
        list(islice(source.batches(order, torch.device("cpu"), ahead=ahead), 15))
        for ahead in (False, True)
    )
    assert same(alone, ahead)
    views = torch.cat([tokens[:, 0, 0] for tokens, _ in alone])
    assert len(set(views.tolist())) == 33  # in three epochs each image has been shown in all views


CPU = torch.device("cpu")


def loads(loaded: dict[int, int], end: int = 100) -> Iterator[int]:
    """Yield numbers until the store is gone, and note in which thread each was loaded."""
    for number in range(end):
        loaded[number] = threading.get_ident()
        yield number
    raise OSError("the store is gone")


def own_threads() -> list[threading.Thread]:
    """Return the threads that load batches."""
    return [each for each in threading.enumerate() if each.name.startswith("next-batch")]


def test_next_batch_is_loaded_while_one_is_used() -> None:
    """While the first is used, the second is loaded, the third is not, and in another thread."""
    loaded = dict[int, int]()
    batches = load_ahead(loads(loaded), CPU)
    assert next(batches) == 0
    until(lambda: len(loaded) > 1, "the second is not loaded")
    assert (list(loaded), list(islice(batches, 3))) == ([0, 1], [1, 2, 3])
    assert threading.get_ident() not in loaded.values()


def test_nothing_is_loaded_beyond_what_is_needed() -> None:
    """The last batch that is needed is used alone; if more are needed later, they follow."""
    loaded, needed = dict[int, int](), 2
    batches = load_ahead(loads(loaded), CPU, lambda: needed)
    assert (list(islice(batches, 2)), list(loaded)) == ([0, 1], [0, 1])
    needed = 9
    assert next(batches) == 2


def test_two_batches_are_loaded_while_one_is_used() -> None:
    """The fourth is not, and no other than those that are needed."""
    loaded = dict[int, int]()
    batches = load_ahead(loads(loaded), CPU, lambda: 4, ahead=2)
    assert next(batches) == 0
    until(lambda: len(loaded) > 2, "the third is not loaded")
    assert (list(loaded), list(islice(batches, 3))) == ([0, 1, 2], [1, 2, 3])
    assert list(loaded) == [0, 1, 2, 3]


def test_failure_is_raised_at_its_own_batch() -> None:
    """The batches before the one that fails are used first."""
    batches = load_ahead(loads({}, 2), CPU)
    assert list(islice(batches, 2)) == [0, 1]
    with pytest.raises(OSError, match="the store is gone"):
        next(batches)


def test_end_and_early_end_leave_no_thread() -> None:
    """All batches come, and neither their end nor a consumer that stops leaves a thread."""
    assert list(load_ahead(iter(range(3)), CPU)) == [0, 1, 2]
    assert not own_threads()
    batches = load_ahead(loads({}), CPU)
    next(batches)
    assert own_threads()
    del batches
    assert not own_threads()
