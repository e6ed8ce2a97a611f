"""95 % intervals around figures that come from a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.section import Section

Array = np.ndarray[Any, Any]
_CONFIDENCE = 0.95
_RESAMPLES = 1000


class MetricEstimate(Section):
    """A figure, the 95 % interval around it, and the number of samples that it comes from."""

    value: float
    low: float
    high: float
    n: int


def proportion(successes: int, n: int) -> MetricEstimate:
    """Return a proportion with Wilson's score interval (Wilson 1927; Brown, Cai, DasGupta 2001).

    With no samples the proportion is 0 and the interval is everything.
    """
    if n == 0:
        return MetricEstimate(value=0.0, low=0.0, high=1.0, n=0)
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(_CONFIDENCE, method="wilson")
    return MetricEstimate(
        value=successes / n, low=float(interval.low), high=float(interval.high), n=n
    )


def bootstrap(
    statistic: Callable[[Array], float], n: int, *, seed: int = 0, resamples: int = _RESAMPLES
) -> MetricEstimate:
    """Return a figure with its percentile bootstrap interval (Efron 1979).

    Args:
        statistic: the figure as a function of sample positions, shape (n,), repeats included.
        n: number of samples.
        seed: of the resampling; the same samples give the same interval.
        resamples: how often to draw n of n with replacement.
    """
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(0, n, n)) for _ in range(resamples)]
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    value = statistic(np.arange(n))
    return MetricEstimate(
        value=float(value), low=float(min(low, value)), high=float(max(high, value)), n=n
    )
