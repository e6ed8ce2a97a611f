"""How far an image's features are from those of a reference: k-nearest-neighbour distance.

Sun, Ming, Zhu and Li, Out-of-distribution detection with deep nearest neighbors (arXiv
2204.06507), section 3: the distance to the k-th nearest of the reference. It assumes no
distribution of the features. They are not divided by their length as in the paper: measured here,
that hides noise and drawings from a model that was trained on photographs
(docs/reference/statistics.md).

This module needs numpy alone: a packaged model holds it.

Shapes: B images, M reference images, D features.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def neighbour_distance(
    features_BD: np.ndarray[Any, Any], reference_MD: np.ndarray[Any, Any], nearest: int
) -> np.ndarray[Any, Any]:
    """Return the distance (B) of each image to the k-th nearest of the reference.

    Args:
        features_BD: of the images.
        reference_MD: of the reference.
        nearest: k, counted from 1; at most M.
    """
    features, reference = np.asarray(features_BD, np.float64), np.asarray(reference_MD, np.float64)
    squares_BM = (features**2).sum(axis=1)[:, None] + (reference**2).sum(axis=1)
    squares_BM -= 2 * features @ reference.T
    kth_B = np.partition(squares_BM, nearest - 1, axis=1)[:, nearest - 1]
    distances_B: np.ndarray[Any, Any] = np.sqrt(np.maximum(kth_B, 0))
    return distances_B
