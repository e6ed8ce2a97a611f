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


class Neighbours:
    """Reference images, and the distance of others to the k-th nearest of them.

    Args:
        features_MD: features of the M reference images.
        nearest: k, counted from 1; at most M.
    """

    def __init__(self, features_MD: np.ndarray[Any, Any], nearest: int) -> None:
        features = np.asarray(features_MD, np.float64)
        self.nearest = nearest
        self._centre_D = features.mean(axis=0)
        self._reference_DM = (features - self._centre_D).astype(np.float32).T
        self._squares_M = (self._reference_DM.astype(np.float64) ** 2).sum(axis=0)

    def distances(self, features_BD: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the distance (B) of each image."""
        centred_BD = (features_BD - self._centre_D).astype(np.float32)
        squares_BM = self._squares_M - 2 * (centred_BD @ self._reference_DM)
        kth_B = np.partition(squares_BM, self.nearest - 1, axis=1)[:, self.nearest - 1]
        kth_B += (centred_BD.astype(np.float64) ** 2).sum(axis=1)
        distances_B: np.ndarray[Any, Any] = np.sqrt(np.maximum(kth_B, 0))
        return distances_B
