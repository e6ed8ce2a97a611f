"""Whether a model's features have drifted: the maximum mean discrepancy of two samples.

Gretton, Borgwardt, Rasch, Schölkopf and Smola, A kernel two-sample test (JMLR 13, 2012). The kernel
is Gaussian, with the median distance of the reference images as its width, in the form of random
Fourier features (Rahimi and Recht, 2007). So the squared discrepancy is the squared distance of the
means of two samples, each image being 256 numbers.

The p-value is that of a permutation test, whose level is exact for any number of images. A level
that many checks share is far below what a few hundred permutations reach, and hundreds of thousands
are needed only when the images differ: it stops as soon as five permutations are as extreme as what
was observed (Besag and Clifford, Sequential Monte Carlo p-values, Biometrika 78, 1991), which
without drift happens after some dozens.

Shapes: M reference images, N images, D features, F Fourier features, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_FOURIER = 256
_EXTREME = 5
"""Permutations as extreme as the observed one, after which it stops."""
_FIRST_DRAWS, _MOST_CELLS = 64, 1 << 23
_WIDTH_IMAGES = 1000
_ROUNDING = 1 - 1e-6
_SEED = 1810


class FeatureTest(NamedTuple):
    """The test of the features."""

    p_value: float
    statistic: float
    """The squared maximum mean discrepancy, biased (V-statistic)."""
    draws: int
    """Number of permutations."""
    effect: float = math.nan
    """Distance of the means of both samples in the kernel's space, in standard deviations of the
    reference there; from the unbiased estimate of the squared discrepancy, 0 where it is below."""


class FeatureKernel:
    """The kernel of a version: its width is fixed by the reference, whatever arrives.

    Args:
        reference_MD: features of the reference images.
    """

    def __init__(self, reference_MD: Array) -> None:
        generator = np.random.default_rng(_SEED)
        features = np.asarray(reference_MD, np.float32)
        self.width = _median_distance(features, generator)
        """Of the Gaussian kernel."""
        self._frequencies_DF = generator.normal(
            0, 1 / self.width, (features.shape[1], _FOURIER)
        ).astype(np.float32)
        self._phases_F = generator.uniform(0, 2 * math.pi, _FOURIER).astype(np.float32)
        self.reference_MF = self.mapped(features)
        """Fourier features of the reference."""

    def mapped(self, features_ND: Array) -> Array:
        """Return Fourier features (N, F), whose products approximate the kernel."""
        angles_NF = np.asarray(features_ND, np.float32) @ self._frequencies_DF + self._phases_F
        mapped_NF: Array = np.cos(angles_NF) * np.float32(math.sqrt(2 / _FOURIER))
        return mapped_NF

    def compare(self, features_ND: Array, level: float, seed: int) -> FeatureTest:
        """Compare features with those of the reference.

        Args:
            features_ND: of images that are not among the reference.
            level: of the test, which decides how many permutations may be needed.
            seed: of the permutations.
        """
        mapped_NF = self.mapped(features_ND)
        result = permutation_test(self.reference_MF, mapped_NF, level, seed)
        effect = _standardized(result.statistic, self.reference_MF, mapped_NF)
        return result._replace(effect=effect)

    def excess(self, features_ND: Array) -> Array:
        """Return how much more each image is like these images than like the reference (N).

        It is the witness function of the discrepancy (Gretton et al., section 2.3).
        """
        mapped_NF = self.mapped(features_ND)
        excess_N: Array = mapped_NF @ (mapped_NF.mean(axis=0) - self.reference_MF.mean(axis=0))
        return excess_N


def _standardized(squared: float, reference_MF: Array, mapped_NF: Array) -> float:
    """Return the distance of two means in standard deviations of the reference.

    Each sample's mean is off by its variance over its size, by which the squared distance is too
    large (Gretton et al., section 2.2, lemma 6).
    """
    before, now = _variance(reference_MF), _variance(mapped_NF)
    unbiased = squared - before / len(reference_MF) - now / len(mapped_NF)
    return math.sqrt(max(unbiased, 0.0) / before) if before else 0.0


def _variance(mapped_NF: Array) -> float:
    """Return the mean squared distance from the mean, in all directions together."""
    return float(mapped_NF.var(axis=0, ddof=1, dtype=np.float64).sum()) if len(mapped_NF) > 1 else 0


def permutation_test(reference_MF: Array, mapped_NF: Array, level: float, seed: int) -> FeatureTest:
    """Compare the means of two samples by the squared distance, with a sequential p-value."""
    pooled = np.concatenate([reference_MF, mapped_NF])
    pooled = pooled - pooled.mean(axis=0, dtype=np.float64).astype(np.float32)
    images, count = len(pooled), len(mapped_NF)
    drawn = min(count, images - count)  # the sums of both parts differ in their sign alone
    scale = (1 / count + 1 / (images - count)) ** 2
    observed = float((pooled[images - count :].sum(axis=0, dtype=np.float64) ** 2).sum())
    most = max(math.ceil(_EXTREME / level) - 1, _EXTREME)
    extreme = draws = 0
    for squares_B in _drawn_squares(pooled, drawn, most, np.random.default_rng(seed)):
        hits = np.flatnonzero(squares_B >= observed * _ROUNDING)
        if extreme + len(hits) >= _EXTREME:
            draws += int(hits[_EXTREME - extreme - 1]) + 1
            return FeatureTest(_EXTREME / draws, observed * scale, draws)
        extreme += len(hits)
        draws += len(squares_B)
    return FeatureTest((extreme + 1) / (draws + 1), observed * scale, draws)


def _drawn_squares(
    pooled_NF: Array, drawn: int, most: int, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield squared lengths of the sum of randomly drawn rows, in batches that grow."""
    images = len(pooled_NF)
    largest = max(1, _MOST_CELLS // max(images, drawn * pooled_NF.shape[1]))
    done, size = 0, min(_FIRST_DRAWS, largest)
    while done < most:
        size = min(size, most - done)
        orders_BN = np.tile(np.arange(images, dtype=np.int32), (size, 1))
        rows = np.arange(size)
        for place in range(drawn):  # Fisher and Yates, of all draws at once
            chosen_B = generator.integers(place, images, size)
            taken = orders_BN[rows, chosen_B]
            orders_BN[rows, chosen_B] = orders_BN[:, place]
            orders_BN[:, place] = taken
        sums_BF = pooled_NF[orders_BN[:, :drawn]].sum(axis=1, dtype=np.float64)
        yield (sums_BF**2).sum(axis=1)
        done += size
        size = min(2 * size, largest)


def _median_distance(features_MD: Array, generator: np.random.Generator) -> float:
    """Return the median distance between two of at most 1,000 images; 1 if it is 0."""
    rows = generator.permutation(len(features_MD))[:_WIDTH_IMAGES]
    chosen = features_MD[rows].astype(np.float64)
    squares = (chosen**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * chosen @ chosen.T
    above = distances[np.triu_indices(len(chosen), 1)]
    median = float(np.sqrt(max(np.median(above), 0.0))) if len(above) else 0.0
    return median or 1.0
