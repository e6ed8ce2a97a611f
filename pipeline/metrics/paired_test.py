"""The paired test of two classifiers on the same images: McNemar's exact test.

`is_better` decides the promotion gate `better_than_champion`, in
`pipeline/registry/champion_gates.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.intervals import MetricEstimate

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
    """Two-sided p-value of McNemar's exact test."""


def paired_difference(a_right_N: Array, b_right_N: Array) -> PairedDifference:
    """Compare two classifiers on the same N images.

    The test is McNemar's, exact (McNemar 1947; two-sided binomial test of the discordant images);
    the interval is Tango's score interval (Tango 1998, Statistics in Medicine 17).

    Args:
        a_right_N: whether a is right on each image.
        b_right_N: whether b is right on the same images, in the same order.

    With no images, the interval spans its whole range and the p-value is 1.
    """
    from scipy.stats import binomtest

    a_right, b_right = a_right_N.astype(bool), b_right_N.astype(bool)
    n = len(a_right)
    only_a = int((a_right & ~b_right).sum())
    only_b = int((b_right & ~a_right).sum())
    discordant = only_a + only_b
    p_value = float(binomtest(only_b, discordant).pvalue) if discordant else 1.0
    return PairedDifference(
        difference=difference(only_b, only_a, n),
        only_a_right=only_a,
        only_b_right=only_b,
        p_value=p_value,
    )


@functools.lru_cache(maxsize=4096)
def difference(gained: int, lost: int, n: int) -> MetricEstimate:
    """Return the difference with Tango's interval.

    Cached, because many classes have the same three counts.

    Args:
        gained: number of images that only the second classifier gets right.
        lost: number of images that only the first classifier gets right.
        n: number of images.
    """
    low, high = _tango(gained, lost, n)
    return MetricEstimate(value=(gained - lost) / n if n else 0.0, low=low, high=high, n=n)


def is_better(pair: PairedDifference, significance: float = 0.05) -> bool:
    """Return whether b is more accurate than a, with a p-value below `significance`."""
    return pair.difference.value > 0 and pair.p_value < significance


def _tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Return the differences that Tango's score test does not reject."""
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
