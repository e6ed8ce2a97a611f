"""Areas under the ROC and the precision-recall curve, one class against the rest, and their means.

The variance of an area is that of its influences, one by image (for ROC: DeLong 1988, Biometrics
44). Where few images are of a class, or all are ranked rightly, those say too little; so a
formula's variance joins them with the weight of `_PRIOR_IMAGES` images. What the centre of an
interval is corrected by counts as a standard deviation: all labels have such a bias, so that a mean
over many has it too, whose variance is small.

With many classes nearly every sample is of another one. So only the samples of a class are sorted,
and all others find their place between them: below, at, or above each of the few levels that the
class's own scores have. What a sample does depends on its place alone.

Shapes: N samples, K classes, L levels, 2 L + 1 places: 2 l + 1 is at level l, 2 l below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    inflation,
    mid_p_bounds,
)
from patchline.pipeline.evaluation.metrics.row_pieces import column_pieces

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
    """Variance of the value by the formula."""
    squares: float
    """Sum of the squared influences: of how much each sample moves the value."""
    freedom: int
    """Positives or negatives, whichever are fewer, less one."""
    n: int
    """Number of samples."""
    is_unknown: bool = False
    """Whether all samples are of one group, so that nothing is known about the variance."""

    def inflated(self, factor: float) -> Area:
        """Return it with squares that are so many times as large; infinite if unknown."""
        if math.isinf(factor):
            return self._replace(is_unknown=True)
        return self._replace(squares=self.squares * factor)

    def by_groups(self, influences_N: Array, own: Array, groups: ImageGroups) -> Area:
        """Return it with the variance of groups, and the formula's of as many samples as these.

        Args:
            influences_N: how much each sample moves the value.
            own: positions of the positives.
            groups: the groups that the samples form.
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
    return _of_one_class(0, scores_N, is_positive_N, groups)


def average_precision(
    scores_N: Array, is_positive_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate | None:
    """Return the average precision; None if all samples are positive, or none is."""
    return _of_one_class(1, scores_N, is_positive_N, groups)


def _of_one_class(
    curve: int, scores_N: Array, is_positive_N: Array, groups: ImageGroups | None
) -> MetricEstimate | None:
    if is_positive_N.all() or not is_positive_N.any():
        return None
    own, scores = np.flatnonzero(is_positive_N), np.asarray(scores_N, np.float64)
    area, _ = areas_of_class(scores, own, groups)[curve]
    return estimates([area])[0]


def mean_area(areas: Sequence[Area], **parts: Any) -> Area:
    """Return the mean of some areas, given its `variance`, `squares`, `freedom` and `n`."""
    value, centre, shrunk = np.mean([area[:3] for area in areas], axis=0).tolist()
    return Area(value, centre, shrunk, **parts)


def _macro_estimate(
    areas: list[Area], influences_N: Array, groups: ImageGroups | None
) -> MetricEstimate:
    """Return the mean of some classes' areas, given how much each sample moves it."""
    freedom = sum(area.freedom for area in areas)
    if len(areas) == 2:  # noqa: PLR2004 - two classes count the same images twice
        freedom //= 2
    mean = mean_area(
        areas,
        variance=_variance_of_mean(np.array([area.variance for area in areas])),
        squares=float(np.sort(influences_N**2).sum()),
        freedom=freedom,
        n=len(influences_N),
    )
    return estimates([mean.inflated(inflation(influences_N, groups))])[0]


def _variance_of_mean(variances_K: Array) -> float:
    """Return the variance of a mean whose K parts are the same for K = 2, nearly apart for many."""
    own, deviations = variances_K.sum(), np.sqrt(variances_K).sum()
    correlation = 1 / (len(variances_K) - 1) ** 2
    return float(own + correlation * (deviations**2 - own)) / len(variances_K) ** 2


def estimates(areas: list[Area]) -> list[MetricEstimate]:
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


class ClassAreas(NamedTuple):
    """The areas of every class, and their mean."""

    macro: MetricEstimate
    """Mean over the classes with images, of which two exist."""
    by_class: tuple[MetricEstimate | None, ...]
    """Area of each class; None where all samples are of the class, or none is."""


class Areas(NamedTuple):
    """The areas under both curves of every class; none where all samples are of one class."""

    roc: ClassAreas | None
    precision: ClassAreas | None

    @classmethod
    def of(
        cls, probabilities_NK: Array, labels_N: Array, groups: ImageGroups | None = None
    ) -> Self:
        """Compute them; with many classes this is what takes longest."""
        present = np.unique(labels_N)
        if len(present) < 2:  # noqa: PLR2004 - two classes
            return cls(None, None)
        areas: tuple[list[Area], list[Area]] = [], []
        moved_N = np.zeros((2, len(labels_N)))
        for k, scores_N in column_pieces(probabilities_NK, present):
            found = areas_of_class(scores_N, np.flatnonzero(labels_N == k), groups)
            for curve, (area, influences_N) in enumerate(found):
                areas[curve].append(area)  # K times N influences would fill the memory
                moved_N[curve] += influences_N / len(present)

        def summary(of_classes: list[Area], influences_N: Array) -> ClassAreas:
            known = dict(zip(present.tolist(), estimates(of_classes), strict=True))
            by_class = tuple(map(known.get, range(probabilities_NK.shape[1])))
            return ClassAreas(_macro_estimate(of_classes, influences_N, groups), by_class)

        return cls(*map(summary, areas, moved_N))


class _Moved(NamedTuple):
    """How much a sample moves an area."""

    others_P: Array
    """How much a sample of another class moves it, by the sample's place."""
    own_L: Array
    """How much a sample of the class itself moves it, by the sample's level."""

    def squares(self, counts: _LevelCounts) -> float:
        """Return the sum of the squares over all samples."""
        others = counts.others_P @ self.others_P**2
        return float(others + counts.own_L @ self.own_L**2)


class _LevelCounts(NamedTuple):
    """Samples of one class by their level, and all others by their place."""

    own_L: Array
    others_P: Array

    @property
    def positives(self) -> int:
        return int(self.own_L.sum())

    @property
    def negatives(self) -> int:
        return int(self.others_P.sum())


def areas_of_class(
    scores_N: Array, own: Array, groups: ImageGroups | None = None
) -> list[tuple[Area, Array]]:
    """Return the areas under the ROC and the precision-recall curve of one class.

    Args:
        scores_N: scores of all samples for the class.
        own: positions of the samples of the class: at least one, but not all.
        groups: the groups that the samples form; None if the samples are independent.

    Returns:
        Each with how much each sample moves it (N).
    """
    levels, own_L = np.unique(scores_N[own], return_counts=True)
    above = np.nextafter(levels, np.array(np.inf, levels.dtype))
    edges = np.column_stack([levels, above]).ravel()
    places_N = np.searchsorted(edges, scores_N, "right")
    others_P = np.bincount(places_N, minlength=len(edges) + 1)
    others_P[1::2] -= own_L
    counts = _LevelCounts(own_L, others_P)
    found = []
    for area, moved in (_roc(counts), _precision(counts)):
        influences_N = moved.others_P[places_N]
        influences_N[own] = moved.own_L[places_N[own] // 2]
        grouped = area if groups is None else area.by_groups(influences_N, own, groups)
        found.append((grouped, influences_N))
    return found


def _roc(counts: _LevelCounts) -> tuple[Area, _Moved]:
    """Return the area with Hanley and McNeil's variance (1982, Radiology 143).

    Their variance is taken with (positives + negatives) / 2 for both counts, as in Newcombe's
    method 5 (2006, Statistics in Medicine 25).
    """
    own, others, positives, negatives = *counts, counts.positives, counts.negatives
    own_below = np.zeros(len(others))  # the samples of the class, ties one half
    own_below[1::2] = np.cumsum(own) - own / 2
    own_below[2::2] = np.cumsum(own)
    others_below = (np.cumsum(others) - others / 2)[1::2]
    placement, own_placement = 1 - own_below / positives, others_below / negatives
    value = min(float(own @ own_placement / positives), 1.0)
    moved = _Moved(
        (placement - value) / np.sqrt(negatives * max(negatives - 1, 1)),
        (own_placement - value) / np.sqrt(positives * max(positives - 1, 1)),
    )
    rarer, n = min(positives, negatives), positives + negatives
    shrunk = (2 * rarer * value + 0.5) / (2 * rarer + 1)
    factor = 1 + (n / 2 - 1) * ((1 - shrunk) / (2 - shrunk) + shrunk / (1 + shrunk))
    variance = shrunk * (1 - shrunk) * factor / (positives * negatives)
    return Area(value, value, shrunk, variance, moved.squares(counts), rarer - 1, n), moved


def _precision(counts: _LevelCounts) -> tuple[Area, _Moved]:
    """Return the average precision with the variance of a proportion of the positives.

    That variance is Boyd, Eng and Page's (2013, ECML). Each positive counts itself as found, which
    lifts the average of few positives; the centre counts half of it, and takes off what the mean of
    1 / x exceeds 1 / mean of x (to second order). Of P positives that is too little by about one
    part in P, which is added (`python -m benchmarks.few_samples map`).
    """
    own, others, positives = counts.own_L, counts.others_P, counts.positives
    n = positives + counts.negatives
    hits = np.cumsum(own[::-1])[::-1]
    rank = hits + np.cumsum(others[::-1])[::-1][1::2]
    precision = hits / rank
    value = min(float(own @ precision / positives), 1.0)
    # A sample moves the precision at its own level and at all levels below it.
    raised, lowered = (np.cumsum(own * part / rank) for part in (1 - precision, precision))
    own_moved = (precision - value + raised) / positives
    others_moved = np.zeros(len(others))
    others_moved[1::2] = others_moved[2::2] = -lowered / positives
    mean = (own @ own_moved + others @ others_moved) / n
    scale = np.sqrt(positives / max(positives - 1, 1))
    moved = _Moved((others_moved - mean) * scale, (own_moved - mean) * scale)
    half, false = hits - own / 2, rank - hits
    spread = false + 2 * false**2 / (hits * positives)
    counted = np.maximum(half + false, 0.5)
    unbiased = half / counted / (1 + spread / counted**2)
    bias = value - float((unbiased * own).sum() / positives)
    centre = max(0.0, value - bias * (1 + 1 / positives))
    shrunk = (value * positives + 0.5) / (positives + 1)
    variance = shrunk * (1 - shrunk) / positives
    freedom = min(positives, n - positives) - 1
    return Area(value, centre, shrunk, variance, moved.squares(counts), freedom, n), moved
