"""95% confidence intervals of metrics that are computed from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
TAIL = 0.025
"""Probability outside of the interval on each side."""
_HALVINGS = 30
_TINY = float(np.finfo(np.float64).tiny)


class MetricEstimate(FrozenModel):
    """A metric's value, its 95% confidence interval, and the number of samples."""

    value: float
    low: float
    high: float
    n: int


def proportion(successes: int, n: int) -> MetricEstimate:
    """Return a proportion with its mid-P interval.

    With no samples the proportion is 0 and the interval is 0 to 1.
    """
    return proportions(np.array([successes]), np.array([n]))[0]


def proportions(successes_M: Array, n_M: Array) -> list[MetricEstimate]:
    """Return M proportions, each with its mid-P interval."""
    values = successes_M / np.maximum(n_M, 1)
    low, high = mid_p_bounds(successes_M, n_M)
    return [
        MetricEstimate(value=float(value), low=float(start), high=float(end), n=int(n))
        for value, start, end, n in zip(values, low, high, n_M, strict=True)
    ]


def f1_scores(hits_M: Array, unions_M: Array) -> list[MetricEstimate]:
    """Return the F1 of M classes with their intervals.

    F1 = 2 J / (1 + J) increases with the Jaccard index J, a proportion: the hits among the
    `unions_M` images that are of the class or predicted as it. So J's interval is transformed.
    """
    return [f1_of_jaccard(jaccard) for jaccard in proportions(hits_M, unions_M)]


def f1_of_jaccard(jaccard: MetricEstimate) -> MetricEstimate:
    """Return F1 = 2 J / (1 + J) with its interval, given the Jaccard index J."""
    value, low, high = (
        2 * each / (1 + each) for each in (jaccard.value, jaccard.low, jaccard.high)
    )
    return MetricEstimate(value=value, low=low, high=high, n=jaccard.n)


def mid_p_bounds(successes_M: Array, trials_M: Array) -> tuple[Array, Array]:
    """Return both ends of the mid-P interval of M proportions.

    Clopper and Pearson's tails with half the probability of the observed count (Lancaster 1961,
    JASA 56; Agresti and Gottard 2007, Computational Statistics & Data Analysis 51). Counts may be
    fractions, as binomial tails are incomplete beta functions. Without trials an interval is
    everything.
    """
    successes = np.clip(np.asarray(successes_M, np.float64), 0, trials_M)
    failures = trials_M - successes
    lows = _mid_p_low(np.concatenate([successes, failures]), np.concatenate([failures, successes]))
    low, high = lows[: len(successes)], 1 - lows[len(successes) :]
    share = successes / np.maximum(trials_M, _TINY)
    counted = np.asarray(trials_M) > 0
    return (
        np.where(counted, np.minimum(low, share), 0.0),
        np.where(counted, np.maximum(high, share), 1.0),
    )


def _mid_p_low(successes: Array, failures: Array) -> Array:
    """Return the shares under which so many successes or more have mid-probability `TAIL`."""
    from scipy.special import betainc, betaincinv

    some, rest = np.maximum(successes, _TINY), np.maximum(failures, _TINY)
    low = betaincinv(some, failures + 1, TAIL)  # Clopper and Pearson's; the next is of one more
    high = np.where(failures > 0, betaincinv(successes + 1, rest, TAIL), 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = np.where(failures > 0, betainc(successes + 1, rest, middle), 0.0)
        too_low = betainc(some, failures + 1, middle) + more < 2 * TAIL
        low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
    return np.where(successes > 0, low, 0.0)


def mean_of_repeats(
    values: Sequence[float], ends: tuple[float, float], samples: int | None = None
) -> MetricEstimate:
    """Return the mean of a metric over repeated measurements, with its t interval.

    Equal values do not make the mean certain: with bounded ends, the interval contains that of a
    proportion of as many samples, or if it would have no width, of as many values.

    For the folds of a cross-validation, the interval is approximate: their training images overlap
    (Bengio and Grandvalet 2004, Journal of Machine Learning Research 5).

    Args:
        values: of a single one, the interval is everything between the ends.
        ends: the smallest and the largest possible value; the interval is cut off there.
        samples: number of samples that all values together are computed from.
    """
    from scipy.special import stdtrit

    count, mean = len(values), float(np.mean(values))
    if count == 1:
        return MetricEstimate(value=mean, low=ends[0], high=ends[1], n=count)
    half = float(stdtrit(count - 1, 1 - TAIL) * np.std(values, ddof=1) / np.sqrt(count))
    low, high = max(ends[0], mean - half), min(ends[1], mean + half)
    if np.isfinite(ends).all() and (samples or half == 0):
        least = with_effective_size(mean, n=count, effective_n=samples or count, ends=ends)
        low, high = min(low, least.low), max(high, least.high)
    return MetricEstimate(value=mean, low=low, high=high, n=count)


def with_effective_size(
    value: float,
    *,
    n: int,
    effective_n: float,
    centre: float | None = None,
    ends: tuple[float, float] = (0.0, 1.0),
) -> MetricEstimate:
    """Return a bounded metric with the mid-P interval of a proportion of equal variance.

    The interval for proportions in complex surveys (Korn and Graubard 1998, Survey Methodology 24):
    if the metric has the variance of a proportion among `effective_n` samples, it gets the interval
    of that proportion.

    Args:
        value: the metric; the interval is widened to include it.
        n: number of samples.
        effective_n: one-sample variance of a proportion of this size, divided by the metric's
            variance.
        centre: the centre of the interval, if the metric has a known bias.
        ends: the smallest and the largest possible value.
    """
    least, most = ends
    share = ((value if centre is None else centre) - least) / (most - least)
    low, high = (
        least + (most - least) * float(end[0])
        for end in mid_p_bounds(np.array([share * effective_n]), np.array([effective_n]))
    )
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)
