"""Mean average precision of labels, without intervals: what training selects its weights by.

The average precision of a label is scikit-learn's `average_precision_score`: the mean over its
positives of the precision at their scores, where equal scores count together. It says nothing about
the scores for a label that all images have, or none, and such a label is in no mean; scikit-learn
and torchmetrics 1.9 count it as 1 and 0.

Shapes: N images, K labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class MeanAveragePrecision(NamedTuple):
    """The mean over the labels that have both an image with them and one without."""

    value: float | None
    """Mean average precision; None if there is no such label."""
    positives: float
    """Positives that every label would have if all had the same and the mean were as certain: the
    number of labels, squared, over the sum of 1 / positives; 0 without a label."""


def mean_average_precision(scores_NK: Array, sets_NK: Array) -> MeanAveragePrecision:
    """Return the mean average precision (mAP) of scores.

    Args:
        scores_NK: scores, higher for images that have a label; logits serve as well as
            probabilities.
        sets_NK: 1 where an image has a label, otherwise 0.
    """
    precisions_K = average_precisions(scores_NK, sets_NK)
    known_K = np.isfinite(precisions_K)
    if not known_K.any():
        return MeanAveragePrecision(None, 0.0)
    return MeanAveragePrecision(float(precisions_K[known_K].mean()), certain_positives(sets_NK))


def find_ranked_labels(sets_NK: Array) -> Array:
    """Return which labels (K) have an average precision: those of some images, but not of all."""
    positives_K = sets_NK.sum(0, dtype=np.int64)
    ranked_K: Array = (positives_K > 0) & (positives_K < len(sets_NK))
    return ranked_K


def certain_positives(sets_NK: Array) -> float:
    """Return the positives that a mAP of these images is as certain as; see the class above."""
    positives_K = sets_NK.sum(0, dtype=np.int64)[find_ranked_labels(sets_NK)]
    labels = len(positives_K)
    return labels**2 / float((1 / positives_K).sum()) if labels else 0.0


def average_precisions(scores_NK: Array, sets_NK: Array) -> Array:
    """Return the average precision (K) of each label; nan for one of all images, or of none."""
    precisions_K = np.full(scores_NK.shape[1], np.nan)
    for label in np.flatnonzero(find_ranked_labels(sets_NK)):
        precisions_K[label] = _average_precision(scores_NK[:, label], sets_NK[:, label])
    return precisions_K


def _average_precision(scores_N: Array, has_N: Array) -> float:
    order = np.argsort(-scores_N, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores_N[order])), len(order) - 1)  # of equal scores
    hits = np.cumsum(has_N[order], dtype=np.int64)[last]
    found = np.diff(hits, prepend=0)
    return float((found * (hits / (last + 1.0))).sum() / hits[-1])
