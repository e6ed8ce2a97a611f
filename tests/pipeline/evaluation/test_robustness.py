"""Corrupted images of a multi-label model: mAP paired with that of the same images as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.robustness import (
    VERSIONS,
    label_set_robustness,
    scores_of_versions,
)

Array = np.ndarray[Any, Any]
_IMAGES = 40


def _data() -> tuple[Array, Array]:
    """Return images whose brightness of the red and green channel are two labels; a third lacks."""
    generator = np.random.default_rng(3)
    labels = (generator.random((_IMAGES, 3)) < (0.4, 0.5, 0)).astype(np.uint8)
    images = generator.integers(60, 120, (_IMAGES, 16, 16, 3), dtype=np.uint8)
    images[..., :2] += 60 * labels[:, None, None, :2]
    return images, labels


def _scores(images_BHWC: Array) -> Array:
    """Score the labels by the brightness of single pixels, which noise disturbs."""
    return images_BHWC[:, 3, 3, :].astype(np.float64)


def test_each_version_has_the_map_of_scikit_learn_however_images_are_grouped() -> None:
    """Over the labels that images have; the mean and the loss follow from it.

    Four groups make a loss less certain than 40 images. Of images that all have the same labels,
    mAP is unknown.
    """
    images, labels = _data()
    found = label_set_robustness(_scores, images, labels, 0)
    assert found
    clean, *values = (
        average_precision_score(labels[:, :2], each[:, :2])
        for each in scores_of_versions(_scores, images, 0)
    )
    cells = [each.mean_average_precision.value for each in found.cells]
    assert cells == pytest.approx(values, abs=1e-9)
    mean = np.mean(values)
    figures = (found.clean.value, found.mean.value, found.loss.value)
    assert figures == pytest.approx((clean, mean, mean - clean), abs=1e-9)
    assert {"corrupted_mAP_loss", "corrupted_mAP/gaussian_noise"} < set(found.metrics)
    assert label_set_robustness(_scores, images, 0 * labels, 0) is None

    calls: list[tuple[int, int]] = []
    groups = ImageGroups.of(np.arange(_IMAGES) // 10)
    few = label_set_robustness(
        _scores, images, labels, 0, lambda *c: calls.append(c), groups=groups
    )
    assert few
    assert calls[-1] == (_IMAGES * (VERSIONS + 1), _IMAGES * (VERSIONS + 1))
    assert few.mean.value == found.mean.value
    worst = found.severities_of("gaussian_noise")[4]
    assert few.severities_of("gaussian_noise")[4].p_value >= 2 / 2**4 > 0.05 > worst.p_value
    assert worst.difference.high < 0
    for each in (*few.metrics.values(), *(cell.difference for cell in found.cells)):
        assert each.low <= each.value <= each.high
