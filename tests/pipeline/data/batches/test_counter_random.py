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
        drawn = CounterRandom(5, 3, torch.tensor([row])).pixels(16)
        assert drawn.numpy().tobytes() == words


def test_numbers_depend_on_the_row_and_not_on_the_batch() -> None:
    """A row draws the same numbers alone, in a batch, and at another place in the batch."""

    def drawn(rows: torch.Tensor) -> list[torch.Tensor]:
        random = CounterRandom(1, 2, rows)
        return [random.uniform(3), random.integers(-4, 9, 2, 2), random.pixels(5)]

    together, backwards = drawn(torch.arange(6)), drawn(torch.arange(6).flip(0))
    for whole, reversed_ in zip(together, backwards, strict=True):
        assert torch.equal(whole, reversed_.flip(0))
    for whole, alone in zip(together, drawn(torch.tensor([4])), strict=True):
        assert torch.equal(whole[4:5], alone)


def test_seed_epoch_row_and_call_each_give_other_numbers() -> None:
    """No two streams, and no two calls of one stream, repeat each other."""
    seen = []
    for seed in range(3):
        for epoch in range(3):
            random = CounterRandom(seed, epoch, torch.arange(20))
            seen += [random.uniform(4), random.uniform(4)]
    flat = torch.cat(seen).flatten()
    assert np.unique(flat.numpy()).size > 0.999 * flat.numel()


def test_numbers_are_evenly_distributed() -> None:
    """Floats, integers and pixels have the mean and spread of an even distribution."""
    random = CounterRandom(0, 0, ROWS)
    uniform = random.uniform(20, low=2.0, high=4.0)
    assert float(uniform.min()) >= 2.0
    assert float(uniform.max()) <= 4.0
    assert float(uniform.mean()) == pytest.approx(3.0, abs=0.01)
    assert float(uniform.std()) == pytest.approx(2 / 12**0.5, abs=0.01)
    counts = torch.bincount(random.integers(0, 9, 20).flatten(), minlength=9)
    assert counts.numel() == 9
    assert np.allclose(counts / counts.sum(), 1 / 9, atol=0.005)
    pixels = random.pixels(7, 3).flatten()
    assert np.unique(pixels.numpy()).size == 256
    assert float(pixels.float().mean()) == pytest.approx(127.5, abs=1.5)


def test_neighbouring_rows_and_epochs_are_not_correlated() -> None:
    """What a row draws says nothing about the next row, the next epoch or the next call."""
    first, second = CounterRandom(0, 0, ROWS), CounterRandom(0, 1, ROWS)
    here, later = first.uniform().numpy(), first.uniform().numpy()
    other = second.uniform().numpy()
    for one, two in ((here[:-1], here[1:]), (here, later), (here, other)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.08


def test_an_empty_range_is_refused() -> None:
    """A range without numbers, or with too many, is named."""
    for low, high in ((3, 3), (0, 2**31)):
        with pytest.raises(ValueError, match="high - low must be"):
            CounterRandom(0, 0, ROWS).integers(low, high)


def test_alternating_values_change_in_every_epoch() -> None:
    """A row has each value in every second epoch, whatever its batch; rows and calls differ."""

    def drawn(epoch: int, rows: torch.Tensor = ROWS) -> list[torch.Tensor]:
        random = CounterRandom(4, epoch, rows)
        return [random.alternating(), random.alternating()]

    epochs = [drawn(epoch) for epoch in range(4)]
    for call in range(2):
        values = torch.stack([epoch[call] for epoch in epochs])
        assert values.dtype == torch.bool
        assert torch.equal(values[1:], ~values[:-1])
        assert float(values[0].float().mean()) == pytest.approx(0.5, abs=0.05)
        assert torch.equal(drawn(3, torch.tensor([1234]))[call], values[3, 1234:1235])
    first, second = epochs[0]
    assert float((first == second).float().mean()) == pytest.approx(0.5, abs=0.05)
