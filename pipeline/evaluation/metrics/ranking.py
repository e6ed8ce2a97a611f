"""Areas under the ROC and the precision-recall curve, one class against the rest.

The variance of an area is that of its influences, one by image (for ROC: DeLong 1988, Biometrics
44). Where few images are of a class, or all are ranked rightly, those say too little; so a
formula's variance joins them with the weight of `_PRIOR_IMAGES` images. What the centre of an
interval is corrected by counts as a standard deviation: all labels have such a bias, so that a mean
over many has it too, whose variance is small.

Shapes: N samples, K classes, P samples of one class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, mid_p_bounds

Array = np.ndarray[Any, Any]
_PRIOR_IMAGES = 8.0


class Area(NamedTuple):
    """An area under a curve, and what its interval needs."""

    value: float
    centre: float
    """The value without its bias."""
    shrunk: float
    """The value, drawn a little towards one half, where the formula's variance is never 0."""
    variance: float
    """By the formula."""
    influences_N: Array
    """How much each sample moves the value; the squares sum to the variance."""
    freedom: int
    """Positives or negatives, whichever are fewer, less one."""

    @property
    def summary(self) -> AreaSummary:
        """All of it but what each sample does."""
        squares = float(np.sort(self.influences_N**2).sum())
        n = len(self.influences_N)
        return AreaSummary(
            self.value, self.centre, self.shrunk, self.variance, squares, self.freedom, n
        )


class AreaSummary(NamedTuple):
    """An area without its influences; `seen` is the sum of their squares."""

    value: float
    centre: float
    shrunk: float
    variance: float
    squares: float
    freedom: int
    n: int
    is_unknown: bool = False
    """Whether all samples are of one group, so that nothing is known about the variance."""

    def inflated(self, factor: float) -> AreaSummary:
        """Return it with squares that are so many times as large; infinite if unknown."""
        if math.isinf(factor):
            return self._replace(is_unknown=True)
        return self._replace(squares=self.squares * factor)

    def by_groups(self, influences_N: Array, own: Array, groups: ImageGroups) -> AreaSummary:
        """Return it with the variance of groups, and the formula's of as many samples as these.

        Args:
            influences_N: how much each sample moves the value.
            own: positions of the positives.
            groups: of the samples.
        """
        sizes_G = np.bincount(groups.codes_N, minlength=groups.count)
        own_G = np.bincount(groups.codes_N[own], minlength=groups.count)
        with_some, with_others = int((own_G > 0).sum()), int((own_G < sizes_G).sum())
        positives, others = len(own), len(influences_N) - len(own)
        each = positives / with_some if positives <= others else others / with_others
        fewer = self._replace(
            variance=self.variance * each, freedom=min(with_some, with_others) - 1
        )
        return fewer.inflated(groups.inflation(influences_N))


def roc_auc(
    scores_N: Array, is_positive_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate | None:
    """Return the area under the ROC curve; None if all samples are positive, or none is."""
    return _of_one_class(roc_area, scores_N, is_positive_N, groups)


def average_precision(
    scores_N: Array, is_positive_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate | None:
    """Return the average precision; None if all samples are positive, or none is."""
    return _of_one_class(precision_area, scores_N, is_positive_N, groups)


def _of_one_class(
    area_of: Callable[[Array, Array], Area],
    scores_N: Array,
    is_positive_N: Array,
    groups: ImageGroups | None,
) -> MetricEstimate | None:
    if is_positive_N.all() or not is_positive_N.any():
        return None
    area = area_of(scores_N, is_positive_N)
    summary = area.summary
    if groups is not None:
        own = np.flatnonzero(is_positive_N)
        summary = summary.by_groups(area.influences_N, own, groups)
    return estimates([summary])[0]


def macro_estimate(
    areas: list[AreaSummary], influences_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate:
    """Return the mean of some classes' areas, given how much each sample moves it."""
    value, centre, shrunk = (
        float(np.mean([getattr(area, part) for area in areas]))
        for part in ("value", "centre", "shrunk")
    )
    freedom = sum(area.freedom for area in areas)
    if len(areas) == 2:  # noqa: PLR2004 - two classes count the same images twice
        freedom //= 2
    variance = _variance_of_mean(np.array([area.variance for area in areas]))
    area = Area(value, centre, shrunk, variance, influences_N, freedom)
    summary = area.summary
    factor = groups.inflation(influences_N) if groups is not None else 1.0
    return estimates([summary.inflated(factor)])[0]


def _variance_of_mean(variances_K: Array) -> float:
    """Return the variance of a mean whose K parts are the same for K = 2, nearly apart for many."""
    own, deviations = variances_K.sum(), np.sqrt(variances_K).sum()
    correlation = 1 / (len(variances_K) - 1) ** 2
    return float(own + correlation * (deviations**2 - own)) / len(variances_K) ** 2


def estimates(areas: list[AreaSummary]) -> list[MetricEstimate]:
    """Return the areas with their intervals, all at once."""
    effective_n = []
    for area in areas:
        weight = area.freedom / (area.freedom + _PRIOR_IMAGES)
        variance = weight * area.squares + (1 - weight) * area.variance
        variance += (area.value - area.centre) ** 2  # a correction is as uncertain as it is large
        spread = weight * area.value * (1 - area.value)
        spread += (1 - weight) * area.shrunk * (1 - area.shrunk)
        effective_n.append(0.0 if area.is_unknown else spread / variance)
    trials = np.array(effective_n)
    lows, highs = mid_p_bounds(np.array([area.centre for area in areas]) * trials, trials)
    return [
        MetricEstimate(
            value=area.value,
            low=min(float(low), area.value),
            high=max(float(high), area.value),
            n=area.n,
        )
        for area, low, high in zip(areas, lows, highs, strict=True)
    ]


def roc_area(scores_N: Array, is_positive_N: Array) -> Area:
    """Return the area with Hanley and McNeil's variance (1982, Radiology 143).

    Their variance is taken with (positives + negatives) / 2 for both counts, as in Newcombe's
    method 5 (2006, Statistics in Medicine 25).
    """
    positives = int(is_positive_N.sum())
    negatives = len(scores_N) - positives
    among_own = np.empty(len(scores_N))
    among_own[is_positive_N] = _mean_ranks(scores_N[is_positive_N])
    among_own[~is_positive_N] = _mean_ranks(scores_N[~is_positive_N])
    below = _mean_ranks(scores_N) - among_own  # of the other kind; ties count one half
    placements = np.where(is_positive_N, below / negatives, 1 - below / positives)
    value = min(float(np.sort(placements[is_positive_N]).mean()), 1.0)
    shrunk, variance = roc_variance(value, positives, negatives)
    kind = np.where(is_positive_N, positives, negatives)
    influences = (placements - value) / np.sqrt(kind * np.maximum(kind - 1, 1))
    rarer = min(positives, negatives)
    return Area(value, value, shrunk, variance, influences, rarer - 1)


def _mean_ranks(values_N: Array) -> Array:
    """Return the rank of each value, from 1; equal ones share their mean rank."""
    return pd.Series(values_N).rank().to_numpy()


def roc_variance(value: float, positives: int, negatives: int) -> tuple[float, float]:
    """Return an area drawn a little towards one half, and the variance of it by the formula."""
    rarer = min(positives, negatives)
    shrunk = (2 * rarer * value + 0.5) / (2 * rarer + 1)
    half = (positives + negatives) / 2 - 1
    factor = 1 + half * ((1 - shrunk) / (2 - shrunk) + shrunk / (1 + shrunk))
    return shrunk, shrunk * (1 - shrunk) * factor / (positives * negatives)


def precision_area(scores_N: Array, is_positive_N: Array) -> Area:
    """Return the average precision with the variance of a proportion of the positives.

    That variance is Boyd, Eng and Page's (2013, ECML). Each positive counts itself as found, which
    lifts the average of few positives; the centre counts half of it, and takes off what the mean of
    1 / x exceeds 1 / mean of x (to second order). Of P positives that is too little by about one
    part in P, which is added (`python -m benchmarks.few_samples map`).
    """
    order = np.argsort(-scores_N, kind="stable")
    positive, n = is_positive_N[order], len(scores_N)
    last = np.append(np.flatnonzero(np.diff(scores_N[order])), n - 1)  # of each run of equal scores
    run = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
    hits, rank = np.cumsum(positive)[last], last + 1.0
    new, precision = np.diff(hits, prepend=0), hits / rank
    positives = int(positive.sum())
    value = min(float((precision * new).sum() / positives), 1.0)
    # A sample moves the precision at its own rank and at all ranks below it.
    raised, lowered = (
        np.cumsum((new * part / rank)[::-1])[::-1] for part in (1 - precision, precision)
    )
    moved = np.where(positive, precision[run] - value + raised[run], -lowered[run]) / positives
    influences = np.empty(n)
    influences[order] = (moved - moved.mean()) * np.sqrt(positives / max(positives - 1, 1))
    centre, shrunk, variance = precision_summary(hits, rank, new, value)
    freedom = min(positives, n - positives) - 1
    return Area(value, centre, shrunk, variance, influences, freedom)


def precision_summary(
    hits: Array, rank: Array, new: Array, value: float
) -> tuple[float, float, float]:
    """Return an average precision without its bias, drawn towards one half, and its variance.

    Args:
        hits: positives at or above a score, for some scores, those of all positives among them.
        rank: samples at or above it.
        new: positives with this score.
        value: the average precision.
    """
    positives = int(new.sum())
    half = hits - new / 2
    false = rank - hits
    spread = false + 2 * false**2 / (np.maximum(hits, 1) * positives)
    excess = spread / np.maximum(half + false, 0.5) ** 2
    unbiased = half / np.maximum(half + false, 0.5) / (1 + excess)
    shrunk = (value * positives + 0.5) / (positives + 1)
    bias = value - float((unbiased * new).sum() / positives)
    centre = max(0.0, value - bias * (1 + 1 / positives))
    return centre, shrunk, shrunk * (1 - shrunk) / positives
