"""Corrupted images of a multi-label model: mAP paired with that of the same images as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from patchline.pipeline.evaluation.multi_label.label_set_robustness import label_set_robustness
from patchline.pipeline.evaluation.prediction_job import CorruptionJob
from patchline.pipeline.evaluation.robustness import VERSIONS, scores_of_versions
from patchline.pipeline.evaluation.robustness_by_task import robustness_of
from patchline.pipeline.labels import label_sets
from patchline.pipeline.metrics.image_groups import ImageGroups

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


def test_each_version_has_the_map_of_scikit_learn() -> None:
    """Over the labels that images have, and the mean and the loss follow from it."""
    images, labels = _data()
    calls: list[tuple[int, int]] = []
    found = label_set_robustness(_scores, images, labels, 0, lambda *c: calls.append(c))
    assert found is not None
    clean, *values = (
        average_precision_score(labels[:, :2], each[:, :2])
        for each in scores_of_versions(_scores, images, 0)
    )
    cells = [each.mean_average_precision.value for each in found.cells]
    assert cells == pytest.approx(values, abs=1e-9)
    mean = np.mean(values)
    figures = (found.clean.value, found.mean.value, found.loss.value)
    assert figures == pytest.approx((clean, mean, mean - clean), abs=1e-9)
    assert calls[-1] == (_IMAGES * (VERSIONS + 1), _IMAGES * (VERSIONS + 1))
    assert {"corrupted_mAP_loss", "corrupted_mAP/gaussian_noise"} < set(found.metrics)


def test_images_of_one_group_are_drawn_together() -> None:
    """Four groups make a loss less certain than 40 images, and a single one tells nothing."""
    images, labels = _data()
    alone, few, one = (
        label_set_robustness(_scores, images, labels, 0, groups=ImageGroups.of(codes))
        for codes in (None, np.arange(_IMAGES) // 10, [0] * _IMAGES)
    )
    assert alone
    assert few
    assert one
    assert few.mean.value == alone.mean.value
    worst = alone.severities_of("gaussian_noise")[4]
    assert few.severities_of("gaussian_noise")[4].p_value >= 2 / 2**4 > 0.05 > worst.p_value
    assert worst.difference.high < 0
    for each in (*few.metrics.values(), *(cell.difference for cell in alone.cells)):
        assert each.low <= each.value <= each.high
    assert (one.mean.low, one.mean.high, one.clean.high) == (0.0, 1.0, 1.0)
    assert (one.loss.low, one.loss.high, one.cells[0].p_value) == (-1.0, 1.0, 1.0)


def test_the_task_decides_what_is_measured() -> None:
    """Sets of labels get mAP; of images that all have the same, it is unknown."""
    images, labels = _data()
    classes = ("a", "b", "c")
    texts = [label_sets.encoded(classes[k] for k in np.flatnonzero(row)) for row in labels]
    job = CorruptionJob(images=_IMAGES, seed=0, classes=classes)
    found = robustness_of(_scores, images, texts, job, is_multi_label=True)
    assert found == label_set_robustness(_scores, images, labels, 0)
    same = robustness_of(_scores, images, ["[]"] * _IMAGES, job, is_multi_label=True)
    assert same is None
