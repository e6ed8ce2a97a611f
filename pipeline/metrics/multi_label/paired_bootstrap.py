"""The paired test of two multi-label classifiers on the same images: a bootstrap over images.

Each draw takes images with replacement, with the labels and the answers of both models, and has a
difference of the metric (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 13
and 16). `python -m benchmarks.statistical_methods label_sets` simulates how often equal
models pass, and the power.

Shapes: N images, K labels, R draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.intervals import TAIL, MetricEstimate
from patchline.pipeline.metrics.multi_label.label_set_metrics import (
    drawn_macro_f1,
    macro_f1,
    mean_average_precision,
    mean_of_known,
)
from patchline.pipeline.metrics.multi_label.resampling import Ranking, drawn_counts, draws_for

Array = np.ndarray[Any, Any]
PAIRED = ("mAP", "macro_f1")
"""The metrics that are compared."""


class PairedMetric(FrozenModel):
    """One metric of two classifiers on the same images, a and b."""

    a: float
    b: float
    difference: MetricEstimate
    """The metric of b minus that of a, with the bootstrap's 95% percentile interval."""
    p_value: float
    """Two-sided: twice the share of the draws on the other side of 0, or at it."""
    draws: int
    """Number of draws; the p-value is at least 2 / (draws + 1)."""


class Answers(NamedTuple):
    """What a classifier says about N images."""

    probabilities_NK: Array
    predicted_NK: Array
    """1 where a label is predicted, else 0."""


def paired_metrics(
    labels_NK: Array, a: Answers, b: Answers, *, draws: int | None = None, seed: int = 0
) -> dict[str, PairedMetric]:
    """Compare two classifiers, by the names of `PAIRED`.

    Without images, or if none has a label, intervals span their whole range and p-values are 1.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        a: the answers of one classifier.
        b: those of the other, about the same images.
        draws: R; by default 1,000, fewer with many images and labels.
        seed: of the draws.
    """
    n, num_labels = labels_NK.shape
    present = np.flatnonzero(labels_NK.any(axis=0))
    if not len(present):
        nothing = MetricEstimate(value=0.0, low=-1.0, high=1.0, n=n)
        unknown = PairedMetric(a=0.0, b=0.0, difference=nothing, p_value=1.0, draws=0)
        return dict.fromkeys(PAIRED, unknown)
    rankings = [
        [Ranking.of(each.probabilities_NK[:, k], labels_NK[:, k]) for k in present]
        for each in (a, b)
    ]
    drawn: dict[str, list[Array]] = {name: [] for name in PAIRED}
    for counts_NR in drawn_counts(n, draws or draws_for(n, num_labels), seed):
        before_R, now_R = (
            mean_of_known(np.array([label.drawn(counts_NR) for label in each]), axis=0)
            for each in rankings
        )
        drawn["mAP"].append(now_R - before_R)
        weights_RN = np.ascontiguousarray(counts_NR.T, dtype=np.float32)
        before_R, now_R = (
            drawn_macro_f1(weights_RN, labels_NK, each.predicted_NK) for each in (a, b)
        )
        drawn["macro_f1"].append(now_R - before_R)
    values = {
        "mAP": [mean_average_precision(each.probabilities_NK, labels_NK) for each in (a, b)],
        "macro_f1": [macro_f1(labels_NK, each.predicted_NK) for each in (a, b)],
    }
    return {
        name: _paired(values[name][0], values[name][1], np.concatenate(drawn[name]), n)
        for name in PAIRED
    }


def is_better(pair: PairedMetric, significance: float = 0.05) -> bool:
    """Return whether b is better than a, with a p-value below `significance`."""
    return pair.difference.value > 0 and pair.p_value < significance


def _paired(a: float, b: float, differences_R: Array, n: int) -> PairedMetric:
    known = differences_R[~np.isnan(differences_R)]
    if not len(known):
        known = np.zeros(1)
    value, draws = b - a, len(known)
    beyond = int(min((known <= 0).sum(), (known >= 0).sum()))
    low, high = np.quantile(known, (TAIL, 1 - TAIL))
    estimate = MetricEstimate(
        value=value, low=min(float(low), value), high=max(float(high), value), n=n
    )
    p_value = min(1.0, 2 * (beyond + 1) / (draws + 1))
    return PairedMetric(a=a, b=b, difference=estimate, p_value=p_value, draws=draws)
