"""Areas under the ROC and the precision-recall curve, one class against the rest, and their means.

The variance of an area is that of its influences, one by image (for ROC: DeLong 1988, Biometrics
44). Where few images are of a class, or all are ranked rightly, those say too little; so a
formula's variance joins them with the weight of `_PRIOR_IMAGES` images. What the centre of an
interval is corrected by counts as a standard deviation: all labels have such a bias, so that a mean
over many has it too, whose variance is small.

Shapes: N samples, K classes, P samples of one class.

With many classes nearly every sample is of another one. So only the samples of a class are sorted,
and all others find their place between them: below, at, or above each of the few levels that the
class's own scores have. What a sample does depends on its place alone.

Shapes: N samples, K classes, L levels, 2 L + 1 places: 2 l + 1 is at level l, 2 l below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, mid_p_bounds
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


_MANY_CLASSES = 100
"""With so many or fewer, all samples are sorted for each."""


class ClassAreas(NamedTuple):
    """The areas of every class, and their mean."""

    macro: MetricEstimate
    """Mean over the classes with images, of which two exist."""
    by_class: tuple[MetricEstimate | None, ...]
    """None where all samples are of the class, or none is."""


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
        many = probabilities_NK.shape[1] > _MANY_CLASSES
        sums = [_Sum(len(labels_N), len(present), groups) for _ in range(2)]
        for k, scores_N in column_pieces(probabilities_NK, present):
            if many:
                _add_by_places(sums, scores_N, np.flatnonzero(labels_N == k))
            else:
                own = np.flatnonzero(labels_N == k)
                sums[0].add(roc_area(scores_N, labels_N == k), own)
                sums[1].add(precision_area(scores_N, labels_N == k), own)
        return cls(*(each.result(present, probabilities_NK.shape[1]) for each in sums))


class _Sum:
    """The areas so far, and how much each sample moves their mean."""

    def __init__(self, samples: int, classes: int, groups: ImageGroups | None) -> None:
        self.areas: list[AreaSummary] = []
        self._groups = groups
        self.influences_N = np.zeros(samples)
        self.classes = classes

    def add(self, area: Area, own: Array) -> None:
        self.influences_N += area.influences_N / self.classes
        summary = area.summary  # K times N influences would fill the memory
        if self._groups is not None:
            summary = summary.by_groups(area.influences_N, own, self._groups)
        self.areas.append(summary)

    def add_placed(self, area: AreaSummary, moved: _Moved, places_N: Array, own: Array) -> None:
        mine = self.influences_N[own]
        self.influences_N += (moved.others_P / self.classes)[places_N]
        self.influences_N[own] = mine + moved.own_L[places_N[own] // 2] / self.classes
        if self._groups is not None:
            influences_N = moved.others_P[places_N]
            influences_N[own] = moved.own_L[places_N[own] // 2]
            area = area.by_groups(influences_N, own, self._groups)
        self.areas.append(area)

    def result(self, present: Array, num_classes: int) -> ClassAreas:
        by_class: list[MetricEstimate | None] = [None] * num_classes
        for k, estimate in zip(present.tolist(), estimates(self.areas), strict=True):
            by_class[k] = estimate
        macro = macro_estimate(self.areas, self.influences_N, self._groups)
        return ClassAreas(macro, tuple(by_class))


class _Moved(NamedTuple):
    """How much a sample moves an area."""

    others_P: Array
    """By its place."""
    own_L: Array
    """One of the class itself, by its level."""

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


def _add_by_places(sums: list[_Sum], scores_N: Array, own: Array) -> None:
    levels, own_L = np.unique(scores_N[own], return_counts=True)
    above = np.nextafter(levels, np.array(np.inf, levels.dtype))
    edges = np.column_stack([levels, above]).ravel()
    places_N = np.searchsorted(edges, scores_N, "right")
    others_P = np.bincount(places_N, minlength=len(edges) + 1)
    others_P[1::2] -= own_L
    counts = _LevelCounts(own_L, others_P)
    for each, found in zip(sums, (_roc(counts), _precision(counts)), strict=True):
        each.add_placed(*found, places_N, own)


def _roc(counts: _LevelCounts) -> tuple[AreaSummary, _Moved]:
    """Return what `roc_area` does."""
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
    shrunk, variance = roc_variance(value, positives, negatives)
    freedom, n = min(positives, negatives) - 1, positives + negatives
    seen = moved.squares(counts)
    return AreaSummary(value, value, shrunk, variance, seen, freedom, n), moved


def _precision(counts: _LevelCounts) -> tuple[AreaSummary, _Moved]:
    """Return what `precision_area` does."""
    own, others, positives = counts.own_L, counts.others_P, counts.positives
    n = positives + counts.negatives
    found = np.cumsum(own[::-1])[::-1]
    rank = found + np.cumsum(others[::-1])[::-1][1::2]
    precision = found / rank
    value = min(float(own @ precision / positives), 1.0)
    raised, lowered = (np.cumsum(own * part / rank) for part in (1 - precision, precision))
    own_moved = (precision - value + raised) / positives
    others_moved = np.zeros(len(others))
    others_moved[1::2] = others_moved[2::2] = -lowered / positives
    mean = (own @ own_moved + others @ others_moved) / n
    scale = np.sqrt(positives / max(positives - 1, 1))
    moved = _Moved((others_moved - mean) * scale, (own_moved - mean) * scale)
    centre, shrunk, variance = precision_summary(found, rank, own, value)
    freedom = min(positives, n - positives) - 1
    return AreaSummary(value, centre, shrunk, variance, moved.squares(counts), freedom, n), moved
