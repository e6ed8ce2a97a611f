"""Batches: their order and their pixels depend on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.batch_order import BalancedOrder, BatchOrder, row_of
from patchline.pipeline.data.batches.loader import Batch, TrainingImages, training_batches
from patchline.plugin_api import ImageSpec
from tests.conftest import draw_photo

ROWS = np.array([0, 2, 3, 5, 6, 7, 8, 11, 12, 14, 15])
"""The training rows of a store of sixteen images."""


@pytest.fixture
def source(tmp_path: Path) -> TrainingImages:
    """Return the training split of a small store, with augmentation."""
    images = np.stack([draw_photo(row % 4, row, 16) for row in range(16)])
    np.save(tmp_path / "images.npy", images)
    spec = ImageSpec(
        channels=3, height=16, width=16, mean=(0.5,) * 3, std=(0.2,) * 3, resize="crop"
    )
    return TrainingImages(
        store=tmp_path,
        rows=ROWS,
        targets=np.arange(16) % 4,
        augmentation=PluginChoice(name="light"),
        image=spec,
        seed=3,
    )


@pytest.fixture(params=["light", "standard"])
def either(request: pytest.FixtureRequest, source: TrainingImages) -> TrainingImages:
    """Return the split with an augmentation of single images, and with a batched one."""
    settings = {"erase": 0.5} if request.param == "standard" else {}
    chosen = PluginChoice.model_validate(
        {"name": request.param, "horizontal_flip": True, **settings}
    )
    return replace(source, augmentation=chosen)


def batches(
    source: TrainingImages,
    count: int,
    *,
    batch_size: int = 4,
    first_step: int = 0,
    workers: int = 0,
) -> list[Batch]:
    """Return the first batches from a step on."""
    order = BatchOrder(source.rows, batch_size, source.seed, first_step)
    stream: Iterator[Batch] = training_batches(order, source, workers)
    return list(islice(stream, count))


def same(first: list[Batch], second: list[Batch]) -> bool:
    """Return whether two lists of batches hold the same images and labels."""
    return len(first) == len(second) and all(
        torch.equal(images, others) and torch.equal(labels, other_labels)
        for (images, labels), (others, other_labels) in zip(first, second, strict=True)
    )


sizes = st.tuples(st.integers(1, 50), st.integers(1, 60))


@settings(max_examples=30, deadline=None)
@given(sizes=sizes, seed=st.integers(0, 2**32 - 1), epochs=st.integers(1, 4))
def test_every_image_comes_once_an_epoch(sizes: tuple[int, int], seed: int, epochs: int) -> None:
    """An epoch has each training row once; a batch of one joins the one before it."""
    count, batch_size = sizes
    rows = np.arange(count) * 3
    order = BatchOrder(rows, batch_size, seed, 0)
    stream = iter(order)
    for epoch in range(epochs):
        found = list(islice(stream, order.steps_per_epoch))
        joined = count > batch_size > 1 and count % batch_size == 1
        assert len(found[-1]) == (batch_size + 1 if joined else (count - 1) % batch_size + 1)
        assert all(len(batch) == batch_size for batch in found[:-1])
        keys = list(chain.from_iterable(found))
        assert {key[0] for key in keys} == {epoch}
        assert sorted(key[1] for key in keys) == rows.tolist()


@settings(max_examples=30, deadline=None)
@given(sizes=sizes, seed=st.integers(0, 1000), first_step=st.integers(0, 40))
def test_order_from_a_step_is_the_tail_of_the_whole(
    sizes: tuple[int, int], seed: int, first_step: int
) -> None:
    """Beginning at a step gives exactly what a run from the start does from that step on."""
    count, batch_size = sizes
    rows = np.arange(count)
    whole = list(islice(iter(BatchOrder(rows, batch_size, seed, 0)), first_step + 6))
    tail = list(islice(iter(BatchOrder(rows, batch_size, seed, first_step)), 6))
    assert tail == whole[first_step:]


def test_order_depends_on_seed_and_epoch() -> None:
    """The order is the same for the same seed, and another for another seed or epoch."""

    def epoch_order(seed: int, epoch: int) -> tuple[int, ...]:
        order = BatchOrder(np.arange(64), 16, seed, epoch * 4)
        return tuple(row for batch in islice(iter(order), 4) for _, row in batch)

    assert epoch_order(1, 0) == epoch_order(1, 0)
    different = {epoch_order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)}
    assert len(different) == 9


def test_batch_holds_augmented_images_with_their_labels(source: TrainingImages) -> None:
    """Each image of a batch is the stored row, changed for its epoch, beside its own label."""
    plain = replace(source, augmentation=PluginChoice(name="none"))
    stored = np.load(source.store / "images.npy")
    order = BatchOrder(ROWS, 4, source.seed, 0)
    keys = list(islice(iter(order), 4))
    for batch_keys, (images, labels) in zip(keys, batches(plain, 4), strict=True):
        rows = [row for _, row in batch_keys]
        assert images.dtype == torch.uint8
        assert torch.equal(images, torch.from_numpy(stored[rows]))
        assert labels.tolist() == [row % 4 for row in rows]


def test_image_looks_different_in_each_epoch(either: TrainingImages) -> None:
    """The pixels of one image in the second epoch are not those of the first."""
    whole = batches(either, 2, batch_size=len(ROWS))
    orders = list(islice(iter(BatchOrder(ROWS, len(ROWS), either.seed, 0)), 2))
    places = [[row for _, row in keys].index(7) for keys in orders]
    first, second = (whole[epoch][0][places[epoch]] for epoch in range(2))
    assert not torch.equal(first, second)


def test_pixels_do_not_depend_on_the_batch_size(either: TrainingImages) -> None:
    """An epoch in small batches holds the same images in the same order as in one batch."""
    small = batches(either, 5, batch_size=2)
    large = batches(either, 1, batch_size=len(ROWS))
    assert torch.equal(torch.cat([images for images, _ in small]), large[0][0])
    assert torch.equal(torch.cat([labels for _, labels in small]), large[0][1])


def test_resumed_batches_equal_the_uninterrupted_ones(either: TrainingImages) -> None:
    """Batches from the fifth step on are, pixel by pixel, those of a run from the start."""
    whole = batches(either, 8)
    assert same(batches(either, 3, first_step=5), whole[5:])
    assert not same(batches(either, 3, first_step=4), whole[5:])


def test_batches_loaded_ahead_are_the_same_ones(either: TrainingImages) -> None:
    """A thread that loads the next batch changes no pixel, from any step on."""
    order = BatchOrder(either.rows, 4, either.seed, 5)
    ahead = training_batches(order, either, workers=0, ahead=True)
    assert same(list(islice(ahead, 6)), batches(either, 6, first_step=5))


@settings(max_examples=30, deadline=None)
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


@pytest.mark.parametrize("either", ["standard"], indirect=True)
def test_an_image_that_is_drawn_twice_is_augmented_twice(either: TrainingImages) -> None:
    """In one epoch of balanced batches."""
    labels = np.zeros_like(either.targets)
    labels[either.rows[:2]] = 1  # two images make up half of the epoch
    source = replace(either, targets=labels)
    order = BalancedOrder(source.rows, 4, source.seed, 0, labels)
    found = islice(training_batches(order, source, 0), order.steps_per_epoch)
    rare = torch.cat([images[labels_B == 1] for images, labels_B in found])
    assert len(rare) in (5, 6)  # of eleven
    assert len({image.numpy().tobytes() for image in rare}) > 2
