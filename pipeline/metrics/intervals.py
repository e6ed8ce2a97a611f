"""95 % intervals around figures that come from a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.section import Section

Array = np.ndarray[Any, Any]
TAIL = 0.025
"""Probability that an interval leaves out on either side."""
_HALVINGS = 30
_TINY = float(np.finfo(np.float64).tiny)


class MetricEstimate(Section):
    """A figure, the 95 % interval around it, and the number of samples that it comes from."""

    value: float
    low: float
    high: float
    n: int


def proportion(successes: int, n: int) -> MetricEstimate:
    """Return a proportion with its mid-P interval.

    With no samples the proportion is 0 and the interval is everything.
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

    F1 = 2 J / (1 + J) rises with the Jaccard index J, a proportion: the hits among the `unions_M`
    images that are of the class or called so. So the ends of J's interval are carried over.
    """
    return [
        MetricEstimate(
            value=2 * jaccard.value / (1 + jaccard.value),
            low=2 * jaccard.low / (1 + jaccard.low),
            high=2 * jaccard.high / (1 + jaccard.high),
            n=jaccard.n,
        )
        for jaccard in proportions(hits_M, unions_M)
    ]


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


def with_effective_size(
    value: float,
    *,
    n: int,
    effective_n: float,
    centre: float | None = None,
    ends: tuple[float, float] = (0.0, 1.0),
) -> MetricEstimate:
    """Return a bounded figure with the mid-P interval of a proportion that is as uncertain.

    The interval for proportions of complex surveys (Korn and Graubard 1998, Survey Methodology
    24): where the figure has the variance that a proportion has among `effective_n` samples, its
    interval is that proportion's.

    Args:
        value: the figure; the interval is widened to it where it would leave it out.
        n: number of samples.
        effective_n: variance of one sample of a proportion of this size, over that of the figure.
        centre: around what the interval is made, where the figure has a known bias.
        ends: the least and the largest value that is possible.
    """
    least, most = ends
    share = ((value if centre is None else centre) - least) / (most - least)
    low, high = (
        least + (most - least) * float(end[0])
        for end in mid_p_bounds(np.array([share * effective_n]), np.array([effective_n]))
    )
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)
