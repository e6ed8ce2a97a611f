"""The paired test of two multi-label classifiers on the same images: a bootstrap over images.

Each draw takes images with replacement, with the labels and the answers of both models, and has a
difference of the metric (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 13
and 16); images of one group are drawn together (`resampling.py`). `python -m
benchmarks.statistical_methods label_sets`, and `groups`, simulate how often equal models pass, and
the power.

Shapes: N images, K labels, R draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate
from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    drawn_macro_f1,
    macro_f1,
)
from patchline.pipeline.evaluation.metrics.multi_label.resampling import (
    Sample,
    drawn_map,
    draws_for,
    rankings_of,
)
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
PAIRED = ("mAP", "macro_f1")
"""The metrics that are compared."""


class PairedMetric(FrozenModel):
    """One metric of two classifiers on the same images, a and b."""

    a: float
    b: float
    difference: MetricEstimate
    """The metric of b minus that of a, with the bootstrap's 95% percentile interval; with groups,
    its t interval."""
    p_value: float
    """Two-sided: twice the share of the draws on the other side of 0, or at it; with groups, of a t
    test with their standard deviation."""
    draws: int
    """Number of draws; without groups, the p-value is at least 2 / (draws + 1)."""
    groups: int | None = None
    """Number of groups that the images form; None if these are independent."""

    def mirrored(self, images: str) -> str:
        """Return in words how images alone, a, compare with those with their mirror images, b."""
        return (
            f"on {images}, mAP is {self.b:.1%} together with the mirror image and {self.a:.1%} "
            "alone"
        )


class ThresholdedScores(NamedTuple):
    """What a classifier says about N images."""

    probabilities_NK: Array
    predicted_NK: Array
    """1 where a label is predicted, else 0."""


def paired_metrics(
    labels_NK: Array,
    a: ThresholdedScores,
    b: ThresholdedScores,
    *,
    groups: ImageGroups | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> dict[str, PairedMetric]:
    """Compare two classifiers, by the names of `PAIRED`.

    Of what is unknown, the interval spans its whole range and the p-value is 1: without images, if
    none has a label, and for mAP if no label is on some images and not on others.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        a: the answers of one classifier.
        b: those of the other, about the same images.
        groups: of the images; None if these are independent.
        draws: R; by default 1,000, fewer with many images and labels.
        seed: of the draws.
    """
    if not labels_NK.any():
        return dict.fromkeys(PAIRED, _unknown(labels_NK, groups))
    sample = Sample(groups, draws or draws_for(*labels_NK.shape), seed)
    of_f1: list[Array] = []
    for counts_NR in sample.drawn(len(labels_NK)):
        weights_RN = np.ascontiguousarray(counts_NR.T, dtype=np.float32)
        before_R, now_R = (
            drawn_macro_f1(weights_RN, labels_NK, each.predicted_NK) for each in (a, b)
        )
        of_f1.append(now_R - before_R)
    scores = [each.probabilities_NK for each in (a, b)]
    f1 = [macro_f1(labels_NK, each.predicted_NK) for each in (a, b)]
    return {
        "mAP": paired_map(labels_NK, *scores, groups=groups, draws=draws, seed=seed),
        "macro_f1": _paired(sample, f1[0], f1[1], np.concatenate(of_f1), len(labels_NK)),
    }


def paired_map(
    labels_NK: Array,
    a_NK: Array,
    b_NK: Array,
    *,
    groups: ImageGroups | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> PairedMetric:
    """Compare the mAP of two classifiers by their scores, as `paired_metrics` does.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        a_NK: scores of one classifier.
        b_NK: those of the other, for the same images.
        groups: of the images; None if these are independent.
        draws: R; by default 1,000, fewer with many images and labels.
        seed: of the draws.
    """
    a, b = (mean_average_precision(each, labels_NK).value for each in (a_NK, b_NK))
    if a is None or b is None:
        return _unknown(labels_NK, groups)
    sample = Sample(groups, draws or draws_for(*labels_NK.shape), seed)
    changes = _drawn_changes(labels_NK, a_NK, b_NK, sample)
    return _paired(sample, a, b, changes, len(labels_NK))


def _unknown(labels_NK: Array, groups: ImageGroups | None) -> PairedMetric:
    nothing = MetricEstimate(value=0.0, low=-1.0, high=1.0, n=len(labels_NK))
    count = groups.count if groups else None
    return PairedMetric(a=0.0, b=0.0, difference=nothing, p_value=1.0, draws=0, groups=count)


def _paired(sample: Sample, a: float, b: float, differences_R: Array, images: int) -> PairedMetric:
    """Return the comparison, given the difference of each draw."""
    known = differences_R[~np.isnan(differences_R)]
    if not len(known):
        known = np.zeros(1)
    value = b - a
    low, high = sample.interval(value, known, (-1.0, 1.0))
    return PairedMetric(
        a=a,
        b=b,
        difference=MetricEstimate(value=value, low=low, high=high, n=images),
        p_value=p_value_of(value, known, sample),
        draws=len(known),
        groups=sample.groups.count if sample.groups else None,
    )


def p_value_of(value: float, differences_R: Array, sample: Sample) -> float:
    """Return the two-sided p-value of a difference, given that of each draw.

    With groups it is that of a t test, and no less than that of an exact test of so many groups.
    """
    from scipy.special import stdtr

    if sample.groups is None:
        return two_sided(differences_R)
    count, error = sample.groups.count, sample.standard_error(differences_R)
    if count == 1:  # says nothing
        return 1.0
    p_value = 2 * float(stdtr(count - 1, -abs(value) / error)) if error else float(value == 0)
    return max(p_value, 2.0 ** (1 - count))


def _drawn_changes(labels_NK: Array, a_NK: Array, b_NK: Array, sample: Sample) -> Array:
    """Return the difference in mAP of each draw (R)."""
    a, b = (rankings_of(each, labels_NK) for each in (a_NK, b_NK))
    changes = [
        drawn_map(b, counts_NR) - drawn_map(a, counts_NR)
        for counts_NR in sample.drawn(len(labels_NK))
    ]
    return np.concatenate(changes)


def two_sided(differences_R: Array) -> float:
    """Return twice the share of the known draws on the other side of 0, or at it."""
    known = differences_R[~np.isnan(differences_R)]
    beyond = int(min((known <= 0).sum(), (known >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(known) + 1))
