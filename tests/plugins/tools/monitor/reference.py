"""References to compare new images with."""

from __future__ import annotations

import numpy as np

from patchline.pipeline.models.reference_images import ReferenceImages


def reference_of(
    probabilities_MK: np.ndarray, features_MD: np.ndarray, labels: np.ndarray | None = None
) -> ReferenceImages:
    """Return a reference of images with such outputs and features."""
    images = len(probabilities_MK)
    names = tuple(map(str, range(images)))
    return ReferenceImages(
        probabilities_MK=probabilities_MK,
        features_MD=features_MD,
        labels=np.zeros(images, int) if labels is None else labels,
        is_test_M=np.ones(images, bool),
        sha256=names,
        paths=names,
        why_no_features="" if features_MD.size else "none",
    )
