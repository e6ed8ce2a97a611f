"""Augmentation: what an image looks like depends on (seed, epoch, index) and nothing else."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import CounterRandom, SeededAugmentation
from patchline.plugin_api import ImageSpec
from tests.conftest import draw_photo

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def image_of(channels: int = 3) -> Pixels:
    """Return one image without any symmetry."""
    return np.ascontiguousarray(draw_photo(2, 4)[:, :, :channels])


def augmentation(
    *, seed: int = 0, channels: int = 3, side: int = 32, **settings: Any
) -> SeededAugmentation:
    """Return an augmentation of images of that size, mirroring included."""
    spec = ImageSpec(
        channels=1 if channels == 1 else 3,
        height=side,
        width=side,
        mean=(0.5,) * channels,
        std=(0.2,) * channels,
        resize="crop",
    )
    chosen = {"name": "light", "horizontal_flip": True, **settings}
    return SeededAugmentation(PluginChoice.model_validate(chosen), spec, seed)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_depend_on_seed_epoch_and_index_alone(channels: int) -> None:
    """Each gives another picture; neither the order of the calls nor the global state matters."""
    image = image_of(channels)
    keys = list(product(range(2), range(3), range(4)))
    pictures: list[list[bytes]] = []
    for order in (keys, keys[::-1]):
        np.random.seed(len(pictures))  # noqa: NPY002 - the state that must not matter
        before = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002 - numpy types the answer as tuple or dict
        made = {key: augmentation(seed=key[0], channels=channels)(image, *key[1:]) for key in order}
        assert np.random.get_state()[1].tolist() == before  # type: ignore[index] # noqa: NPY002 - the same
        assert {(each.shape, each.dtype) for each in made.values()} == {
            ((32, 32, channels), np.dtype(np.uint8))
        }
        pictures.append([made[key].tobytes() for key in keys])
    assert (pictures[0], len(set(pictures[0]))) == (pictures[1], len(keys))


def test_neither_amount_nor_neighbours_nor_epochs_follow_the_mirroring() -> None:
    """Mirrored images are not brighter, as they would be from one shared number, nor in a row."""
    image = np.full((8, 8, 3), 60, np.uint8)
    image[:, 4:] = 160
    augment = augmentation(side=8, shift=0, scale=0, rotation=0, brightness=0.4)
    changed = np.array([[augment(image, epoch, i) for i in range(40)] for epoch in range(10)])
    light = changed.mean(axis=(2, 3, 4))
    flips = (changed[:, :, 0, 0, 0] > changed[:, :, 0, -1, 0]).astype(float)
    assert flips.mean() == pytest.approx(0.5, abs=0.07)
    assert np.unique(np.round(light)).size > 40
    for first, second in (
        (flips, light), (flips[:, :-1], flips[:, 1:]), (flips[:-1], flips[1:])
    ):  # fmt: skip
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.14


ROWS = torch.arange(2000)


def _splitmix(state: int) -> int:
    """Return the output of the published SplitMix64 for a state."""
    z = state
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_words_are_splitmix64() -> None:
    """Tensors of wrapping int64 give the numbers of unsigned 64-bit arithmetic."""
    golden = 0x9E3779B97F4A7C15
    start = _splitmix((_splitmix((5 + golden) % 2**64) + 4 * golden) % 2**64)
    for row in (0, 1, 17, 10**9):
        key = _splitmix((start + (row + 1) * golden) % 2**64)
        words = b"".join(
            _splitmix((key + count * golden) % 2**64).to_bytes(8, "little") for count in (1, 2)
        )
        assert CounterRandom(5, 3, torch.tensor([row])).pixels(16).numpy().tobytes() == words


def test_numbers_are_evenly_distributed() -> None:
    """Floats, integers and pixels have the mean and spread of an even distribution."""
    random = CounterRandom(0, 0, ROWS)
    uniform = random.uniform(20, low=2.0, high=4.0)
    assert 2.0 <= float(uniform.min()) <= float(uniform.max()) <= 4.0
    assert float(uniform.mean()) == pytest.approx(3.0, abs=0.01)
    assert float(uniform.std()) == pytest.approx(2 / 12**0.5, abs=0.01)
    for values, count in ((random.integers(0, 9, 20), 9), (random.pixels(70).int(), 256)):
        counts = torch.bincount(values.flatten(), minlength=count)
        assert np.allclose(counts * (count / counts.sum()), 1, atol=0.2)


def test_alternating_values_change_in_every_epoch() -> None:
    """A row has each value in every second epoch, whatever its batch; rows and calls differ."""

    def drawn(epoch: int, rows: torch.Tensor = ROWS) -> torch.Tensor:
        random = CounterRandom(4, epoch, rows)
        return torch.stack([random.alternating(), random.alternating()])

    epochs = torch.stack([drawn(epoch) for epoch in range(4)])
    assert epochs.dtype == torch.bool
    assert torch.equal(epochs[1:], ~epochs[:-1])
    assert torch.equal(drawn(3, torch.tensor([1234])), epochs[3, :, 1234:1235])
    first, second = epochs[0]
    for values in (first, second, first == second):
        assert float(values.float().mean()) == pytest.approx(0.5, abs=0.05)
