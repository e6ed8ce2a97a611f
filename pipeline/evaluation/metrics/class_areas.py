"""Areas under both curves for every class, and their means.

With many classes nearly every sample is of another one. So only the samples of a class are sorted,
and all others find their place between them: below, at, or above each of the few levels that the
class's own scores have. What a sample does depends on its place alone.

Shapes: N samples, K classes, L levels, 2 L + 1 places: 2 l + 1 is at level l, 2 l below it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.ranking import (
    Area,
    AreaSummary,
    estimates,
    macro_estimate,
    precision_area,
    precision_summary,
    roc_area,
    roc_variance,
)
from patchline.pipeline.evaluation.metrics.row_pieces import column_pieces

Array = np.ndarray[Any, Any]
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
