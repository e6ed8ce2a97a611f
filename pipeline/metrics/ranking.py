"""Areas under the ROC and the precision-recall curve, one class against the rest.

The variance of an area is that of its influences, one by image (for ROC: DeLong 1988, Biometrics
44). Where few images are of a class, or all are ranked rightly, those say too little; so a
formula's variance joins them with the weight of `_PRIOR_IMAGES` images.

Shapes: N samples, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pipeline.metrics.intervals import MetricEstimate, with_effective_size

Array = np.ndarray[Any, Any]
_PRIOR_IMAGES = 8.0


class _Area(NamedTuple):
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


def roc_auc(scores_N: Array, is_positive_N: Array) -> MetricEstimate | None:
    """Return the area under the ROC curve; None if all samples are positive, or none is."""
    return _of_one_class(_roc_area, scores_N, is_positive_N)


def average_precision(scores_N: Array, is_positive_N: Array) -> MetricEstimate | None:
    """Return the average precision; None if all samples are positive, or none is."""
    return _of_one_class(_precision_area, scores_N, is_positive_N)


def macro_roc_auc(probabilities_NK: Array, labels_N: Array) -> MetricEstimate:
    """Return the mean area under the ROC curve of the classes with images, of which two exist."""
    return _of_all_classes(_roc_area, probabilities_NK, labels_N)


def macro_average_precision(probabilities_NK: Array, labels_N: Array) -> MetricEstimate:
    """Return the mean average precision of the classes with images, of which two exist."""
    return _of_all_classes(_precision_area, probabilities_NK, labels_N)


def _of_one_class(
    area_of: Callable[[Array, Array], _Area], scores_N: Array, is_positive_N: Array
) -> MetricEstimate | None:
    if is_positive_N.all() or not is_positive_N.any():
        return None
    return _estimate(area_of(scores_N, is_positive_N))


def _of_all_classes(
    area_of: Callable[[Array, Array], _Area], probabilities_NK: Array, labels_N: Array
) -> MetricEstimate:
    present = np.unique(labels_N)
    areas, influences_N = [], np.zeros(len(labels_N))
    for k in present:
        area = area_of(probabilities_NK[:, k], labels_N == k)
        influences_N += area.influences_N / len(present)
        areas.append(area._replace(influences_N=np.empty(0)))  # K of them would fill the memory
    value, centre, shrunk = (
        float(np.mean([getattr(area, part) for area in areas]))
        for part in ("value", "centre", "shrunk")
    )
    freedom = sum(area.freedom for area in areas)
    if len(present) == 2:  # noqa: PLR2004 - two classes count the same images twice
        freedom //= 2
    variance = _variance_of_mean(np.array([area.variance for area in areas]))
    return _estimate(_Area(value, centre, shrunk, variance, influences_N, freedom))


def _variance_of_mean(variances_K: Array) -> float:
    """Return the variance of a mean whose K parts are the same for K = 2, nearly apart for many."""
    own, deviations = variances_K.sum(), np.sqrt(variances_K).sum()
    correlation = 1 / (len(variances_K) - 1) ** 2
    return float(own + correlation * (deviations**2 - own)) / len(variances_K) ** 2


def _estimate(area: _Area) -> MetricEstimate:
    weight = area.freedom / (area.freedom + _PRIOR_IMAGES)
    seen = np.sort(area.influences_N**2).sum()
    variance = weight * seen + (1 - weight) * area.variance
    spread = weight * area.value * (1 - area.value) + (1 - weight) * area.shrunk * (1 - area.shrunk)
    return with_effective_size(
        area.value,
        n=len(area.influences_N),
        effective_n=float(spread / variance),
        centre=area.centre,
    )


def _roc_area(scores_N: Array, is_positive_N: Array) -> _Area:
    """Return the area with Hanley and McNeil's variance (1982, Radiology 143).

    Their variance is taken with (positives + negatives) / 2 for both counts, as in Newcombe's
    method 5 (2006, Statistics in Medicine 25).
    """
    from scipy.stats import rankdata

    positives = int(is_positive_N.sum())
    negatives = len(scores_N) - positives
    among_own = np.empty(len(scores_N))
    among_own[is_positive_N] = rankdata(scores_N[is_positive_N])
    among_own[~is_positive_N] = rankdata(scores_N[~is_positive_N])
    below = rankdata(scores_N) - among_own  # of the other kind; ties count one half
    placements = np.where(is_positive_N, below / negatives, 1 - below / positives)
    value = min(float(np.sort(placements[is_positive_N]).mean()), 1.0)
    rarer = min(positives, negatives)
    shrunk = (2 * rarer * value + 0.5) / (2 * rarer + 1)
    half = len(scores_N) / 2 - 1
    factor = 1 + half * ((1 - shrunk) / (2 - shrunk) + shrunk / (1 + shrunk))
    variance = shrunk * (1 - shrunk) * factor / (positives * negatives)
    kind = np.where(is_positive_N, positives, negatives)
    influences = (placements - value) / np.sqrt(kind * np.maximum(kind - 1, 1))
    return _Area(value, value, shrunk, variance, influences, rarer - 1)


def _precision_area(scores_N: Array, is_positive_N: Array) -> _Area:
    """Return the average precision with the variance of a proportion of the positives.

    That variance is Boyd, Eng and Page's (2013, ECML). Each positive counts itself as found, which
    lifts the average of few positives; the centre counts half of it, and takes off what the mean of
    1 / x exceeds 1 / mean of x (to second order).
    """
    order = np.argsort(-scores_N, kind="stable")
    positive, n = is_positive_N[order], len(scores_N)
    last = np.append(np.flatnonzero(np.diff(scores_N[order])), n - 1)  # of each run of equal scores
    run = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
    found, rank = np.cumsum(positive)[last], last + 1.0
    new, precision = np.diff(found, prepend=0), found / rank
    positives = int(positive.sum())
    value = min(float((precision * new).sum() / positives), 1.0)
    half = found - new / 2
    false = rank - found
    spread = false + 2 * false**2 / (np.maximum(found, 1) * positives)
    excess = spread / np.maximum(half + false, 0.5) ** 2
    unbiased = half / np.maximum(half + false, 0.5) / (1 + excess)
    # A sample moves the precision at its own rank and at all ranks below it.
    raised, lowered = (
        np.cumsum((new * part / rank)[::-1])[::-1] for part in (1 - precision, precision)
    )
    moved = np.where(positive, precision[run] - value + raised[run], -lowered[run]) / positives
    influences = np.empty(n)
    influences[order] = (moved - moved.mean()) * np.sqrt(positives / max(positives - 1, 1))
    shrunk = (value * positives + 0.5) / (positives + 1)
    return _Area(
        value=value,
        centre=float((unbiased * new).sum() / positives),
        shrunk=shrunk,
        variance=shrunk * (1 - shrunk) / positives,
        influences_N=influences,
        freedom=min(positives, n - positives) - 1,
    )
