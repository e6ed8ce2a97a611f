"""How far an image's features are from those of a reference: k-nearest-neighbour distance.

Sun, Ming, Zhu and Li, Out-of-distribution detection with deep nearest neighbors (arXiv
2204.06507), section 3: the distance from the features, divided by their length, to the k-th
nearest of the reference. It assumes no distribution of the features.

This module needs numpy alone: a packaged model holds it.

Shapes: B images, M reference images, D features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SHORTEST = 1e-12


def of_unit_length(features_BD: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return each row divided by its length, in float32."""
    rows_BD = np.asarray(features_BD, np.float32)
    lengths_B1 = np.maximum(np.linalg.norm(rows_BD, axis=1, keepdims=True), _SHORTEST)
    units_BD: np.ndarray[Any, Any] = rows_BD / lengths_B1
    return units_BD


def neighbour_distance(
    features_BD: np.ndarray[Any, Any], reference_MD: np.ndarray[Any, Any], nearest: int
) -> np.ndarray[Any, Any]:
    """Return the distance (B) of each image to the k-th nearest of the reference, 0 to 2.

    Args:
        features_BD: raw features of the images.
        reference_MD: features of unit length.
        nearest: k, counted from 1; at most M.
    """
    products_BM = of_unit_length(features_BD) @ reference_MD.T
    place = len(reference_MD) - nearest
    kth_B = np.partition(products_BM, place, axis=1)[:, place]
    distances_B: np.ndarray[Any, Any] = np.sqrt(np.maximum(2 - 2 * kth_B, 0))
    return distances_B
