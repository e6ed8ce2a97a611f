"""Random numbers for a batch of images, computed from counters instead of a running state.

Each number is the SplitMix64 hash (doi:10.1145/2660193.2660195) of the seed, the epoch, the image's
row and a counter. It is computed in integers, so it is the same on every device, and it does not
depend on the other images of the batch.
"""

from __future__ import annotations

import math

import torch

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_FLOAT_BITS = 24
"""A float32 holds integers of this many bits exactly."""
_RANGE_BITS = 31


def _signed(word: int) -> int:
    """Return the int64 with the same bits as an unsigned 64-bit word."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; `>>` alone would repeat the sign."""
    return (words >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _hash(words: torch.Tensor) -> torch.Tensor:
    """Replace each int64 by its SplitMix64 output, in place; products wrap around."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_signed(_FIRST))
    words.bitwise_xor_(_shifted(words, 27)).mul_(_signed(_SECOND))
    return words.bitwise_xor_(_shifted(words, 31))


def _hashed_number(word: int) -> int:
    word %= _WORD
    word = (word ^ (word >> 30)) * _FIRST % _WORD
    word = (word ^ (word >> 27)) * _SECOND % _WORD
    return word ^ (word >> 31)


class CounterRandom:
    """Random numbers of the images of a batch in one epoch; see `patchline.plugin_api.BatchRandom`.

    Args:
        seed: of the run.
        epoch: starts at 0.
        rows_B: int64; the images' rows in the store. The numbers are on the device of this tensor.
    """

    def __init__(self, seed: int, epoch: int, rows_B: torch.Tensor) -> None:
        start = _hashed_number(_hashed_number(seed + _GOLDEN) + (epoch + 1) * _GOLDEN)
        self._keys_B = _hash((rows_B + 1) * _signed(_GOLDEN) + _signed(start))
        self._drawn = 0
        self._seed, self._epoch, self._rows_B = seed, epoch, rows_B
        self._alternations = 0

    def _words(self, count: int) -> torch.Tensor:
        """Return the next `count` words of every image: int64 (B, count)."""
        first = self._drawn + 1
        self._drawn += count
        counters = torch.arange(first, first + count, device=self._keys_B.device)
        return _hash(self._keys_B[:, None] + counters * _signed(_GOLDEN))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Return float32 numbers (B, *shape), evenly distributed from `low` to `high`."""
        words = _shifted(self._words(math.prod(shape)), 64 - _FLOAT_BITS)
        unit = words.float() * 2.0**-_FLOAT_BITS
        return (unit * (high - low) + low).reshape(-1, *shape)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers (B, *shape), at least `low` and less than `high`.

        Raises:
            ValueError: if the range is empty or has 2**31 numbers or more.
        """
        if not 0 < high - low < 2**_RANGE_BITS:
            raise ValueError(f"integers({low}, {high}): high - low must be from 1 to 2**31 - 1.")
        words = _shifted(self._words(math.prod(shape)), 32)
        return (_shifted(words * (high - low), 32) + low).reshape(-1, *shape)

    def pixels(self, *shape: int) -> torch.Tensor:
        """Return uint8 numbers (B, *shape), evenly distributed from 0 to 255."""
        count = math.prod(shape)
        return self._words(-(-count // 8)).view(torch.uint8)[:, :count].reshape(-1, *shape)

    def alternating(self) -> torch.Tensor:
        """Return a bool for each image (B,), random in the first epoch, then alternating."""
        first_epoch = CounterRandom(self._seed, -1 - self._alternations, self._rows_B)
        self._alternations += 1
        return first_epoch.integers(0, 2).bool() ^ (self._epoch % 2 == 1)
