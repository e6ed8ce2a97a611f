"""The paired test of two classifiers on the same images: McNemar's exact test, or by groups.

Images of one group are not independent, so groups are tested as a whole. If each group has one
image, that is McNemar's test.

`is_better` decides the promotion gate `better_than_champion`, in
`pipeline/registry/promotion_gates.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Protocol

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
_Z = 1.959963984540054


class PairedDifference(FrozenModel):
    """The paired comparison of two classifiers, a and b."""

    difference: MetricEstimate
    """Accuracy of b minus accuracy of a."""
    only_a_right: int
    """Images that only a gets right."""
    only_b_right: int
    """Images that only b gets right."""
    p_value: float
    """Two-sided p-value of McNemar's exact test; with groups, of the test of their signs."""
    groups: int | None = None
    """Number of groups that the images form; None if these are independent."""


class PairedResult(Protocol):
    """The paired comparison of two classifiers by any metric."""

    @property
    def difference(self) -> MetricEstimate:
        """The metric of b minus that of a."""

    @property
    def p_value(self) -> float:
        """Two-sided."""


def compute_paired_difference(
    a_right_N: Array, b_right_N: Array, groups: ImageGroups | None = None
) -> PairedDifference:
    """Compare two classifiers on the same N images.

    The test is McNemar's, exact (McNemar 1947; two-sided binomial test of the discordant images);
    the interval is Tango's score interval (Tango 1998, Statistics in Medicine 17).

    With groups, the test exchanges the classifiers in whole groups, and the interval is Tango's
    for as many independent images as make the difference as certain.

    Args:
        a_right_N: whether a is right on each image.
        b_right_N: whether b is right on the same images, in the same order.
        groups: the groups that the images form; None if the images are independent.

    With no images, the interval spans its whole range and the p-value is 1.
    """
    from scipy.stats import binomtest

    wins_N = b_right_N.astype(np.float64) - a_right_N
    only_a, only_b = (int((wins_N == sign).sum()) for sign in (-1, 1))
    if groups is not None:
        p_value = sign_flip_p_value(groups.sums(wins_N))
    else:
        discordant = only_a + only_b
        p_value = float(binomtest(only_b, discordant).pvalue) if discordant else 1.0
    return PairedDifference(
        difference=difference(a_right_N, b_right_N, groups),
        only_a_right=only_a,
        only_b_right=only_b,
        p_value=p_value,
        groups=groups.count if groups else None,
    )


def difference(a_right_N: Array, b_right_N: Array, groups: ImageGroups | None) -> MetricEstimate:
    """Return the difference in accuracy with Tango's interval; see `compute_paired_difference`."""
    wins_N = b_right_N.astype(np.float64) - a_right_N
    n = len(wins_N)
    gained, lost = (int((wins_N == sign).sum()) for sign in (1, -1))
    each = 1.0 if groups is None else groups.effective_size(wins_N) / n
    low, high = _tango(gained * each, lost * each, n * each)
    value = (gained - lost) / n if n else 0.0
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)


def sign_flip_p_value(wins_G: Array) -> float:
    """Return the two-sided p-value of the exact test that exchanges two classifiers in each group.

    If they are equally accurate, each group's net wins are as likely for one as for the other. The
    p-value is the share of the 2^G assignments of signs whose sum is at least as far from 0 as the
    observed one (Fisher's randomisation test; the asymptotic one is Durkalski et al. 2003,
    Statistics in Medicine 22). It is exact for any number of groups: the sums are counted by
    the product of the groups' characteristic functions. For groups of one image it is McNemar's.

    Args:
        wins_G: the number of images that only the second classifier gets right, minus those that
            only the first one does, of each group.
    """
    sizes_M, counts_M = np.unique(np.abs(wins_G[wins_G != 0]).astype(np.int64), return_counts=True)
    if not len(sizes_M):
        return 1.0
    reach = int((sizes_M * counts_M).sum())
    # of the sum of the sizes with a positive sign, from 0 to reach, at `length` frequencies
    length = reach + 1
    frequencies = np.arange(length // 2 + 1)
    turns = np.exp(-1j * np.pi * (frequencies * reach % (2 * length)) / length)
    for size, count in zip(sizes_M.tolist(), counts_M.tolist(), strict=True):
        turns *= np.cos(np.pi * (frequencies * size % (2 * length)) / length) ** count
    probabilities = np.fft.irfft(turns, length)
    sums = 2 * np.arange(length) - reach
    extreme = float(probabilities[np.abs(sums) >= abs(int(wins_G.sum()))].sum())
    return min(1.0, max(extreme, 2.0 ** (1 - int(counts_M.sum()))))


def is_better(pair: PairedResult, significance: float = 0.05) -> bool:
    """Return whether b is better than a, with a p-value below `significance`."""
    return pair.difference.value > 0 and pair.p_value < significance


@functools.lru_cache(maxsize=4096)  # many classes have the same three counts
def _tango(gained: float, lost: float, n: float) -> tuple[float, float]:
    """Return the differences that Tango's score test does not reject; counts may be fractions."""
    if n == 0:
        return -1.0, 1.0
    from scipy.optimize import brentq

    difference = (gained - lost) / n

    def statistic(delta: float) -> float:
        b = -gained - lost + (2 * n - gained + lost) * delta
        c = -lost * delta * (1 - delta)
        share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = n * (2 * share + delta * (1 - delta))
        return (gained - lost - n * delta) / math.sqrt(max(variance, 1e-300))

    edge = 1 - 1e-12
    low, high = -1.0, 1.0
    if difference > -1:
        low = brentq(lambda d: statistic(d) - _Z, -edge, difference)
    if difference < 1:
        high = brentq(lambda d: statistic(d) + _Z, difference, edge)
    return min(low, difference), max(high, difference)
