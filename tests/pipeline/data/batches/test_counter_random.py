"""Counter-based random numbers: a hash of seed, epoch and row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from patchline.pipeline.data.batches.counter_random import CounterRandom

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
