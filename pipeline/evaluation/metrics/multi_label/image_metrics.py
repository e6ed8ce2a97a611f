"""What a multi-label classifier gets right or wrong on each single image.

Shapes: N images, K labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.metrics.row_pieces import row_slices

Array = np.ndarray[Any, Any]
_LEAST_PROBABILITY = 1e-15


def f1_of_images(labels_NK: Array, predicted_NK: Array) -> Array:
    """Return the F1 of each image's labels (N); 1 where it has none and none is predicted."""
    hits_N = (labels_NK & predicted_NK).sum(axis=1, dtype=np.int64)
    both_N = labels_NK.sum(axis=1, dtype=np.int64) + predicted_NK.sum(axis=1, dtype=np.int64)
    f1_N: Array = np.where(both_N > 0, 2 * hits_N / np.maximum(both_N, 1), 1.0)
    return f1_N


def exact_matches(labels_NK: Array, predicted_NK: Array) -> Array:
    """Return whether all labels of each image are right (N)."""
    right_N: Array = (labels_NK == predicted_NK).all(axis=1)
    return right_N


def ranking_losses(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return the share of an image's pairs of labels in the wrong order (N); ties are wrong.

    A pair is one label that the image has and one that it has not. Without pairs it is 0, as in
    Tsoumakas, Katakis and Vlahavas (2010, Mining Multi-label Data) and scikit-learn.
    """
    losses_N = np.zeros(len(labels_NK))
    for rows in row_slices(labels_NK.shape):
        scores, has = probabilities_NK[rows].astype(np.float64), labels_NK[rows].astype(bool)
        not_above = _ranks_in_rows(scores)
        of_others = _ranks_in_rows(np.where(has, np.inf, scores))
        wrong = np.where(has, 0, not_above - of_others).sum(axis=1)
        pairs = has.sum(axis=1) * (~has).sum(axis=1)
        losses_N[rows] = wrong / np.maximum(pairs, 1)
    return losses_N


def _ranks_in_rows(values_NK: Array) -> Array:
    """Return the rank of each value in its row, from 1; equal ones share the highest (N, K)."""
    return pd.DataFrame(values_NK).rank(axis=1, method="max").to_numpy()


def coverages(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return how many labels are as probable as the least probable one that is right (N).

    An image without labels needs none: 0.
    """
    least_N = np.where(labels_NK > 0, probabilities_NK, np.inf).min(axis=1)
    needed_N: Array = (probabilities_NK >= least_N[:, None]).sum(axis=1)
    return needed_N


def log_losses_of_images(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return the binary cross-entropy of each image, mean over the labels (N)."""
    losses_N = np.empty(len(labels_NK))
    for rows in row_slices(labels_NK.shape):
        chance = probabilities_NK[rows].astype(np.float64)
        true = np.where(labels_NK[rows] > 0, chance, 1 - chance)
        losses_N[rows] = -np.log(np.maximum(true, _LEAST_PROBABILITY)).mean(axis=1)
    return losses_N
