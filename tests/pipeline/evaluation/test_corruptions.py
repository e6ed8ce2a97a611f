"""Corrupted images: what each corruption does, and how the accuracy on them is reported."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.evaluation.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    Array,
    corrupt,
)
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.robustness import VERSIONS, measure_robustness, sample_rows
from tests.conftest import draw_photo

PHOTO = draw_photo(2, 1, 64)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_depends_on_seed_and_image_alone(name: str) -> None:
    """The same image again is the same; what is random differs between seeds and images."""
    first = corrupt(PHOTO, name, 3, 0)
    assert np.array_equal(first, corrupt(PHOTO.copy(), name, 3, 0))
    assert not np.array_equal(first, PHOTO)
    is_random = not np.array_equal(first, corrupt(PHOTO, name, 3, 1))
    still = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    assert is_random == (name not in still)
    for shape in ((16, 16, 1), (32, 24, 3), (20, 20, 4)):  # kept, as is the type
        result = corrupt(np.full(shape, 99, np.uint8), name, 5, 0)
        assert (result.shape, result.dtype) == (shape, np.uint8)


def test_the_parameters_are_those_of_the_paper() -> None:
    """Known from constant images: deviations, shares and contrasts of ImageNet-C."""
    grey = np.full((224, 224, 3), 128, np.uint8)
    assert (corrupt(grey, "gaussian_noise", 1, 0) / 255.0).std() == pytest.approx(0.08, rel=0.02)
    shot = corrupt(grey, "shot_noise", 2, 0) / 255.0
    assert shot.std() == pytest.approx(np.sqrt(128 / 255 / 25), rel=0.02)
    impulse = corrupt(grey, "impulse_noise", 5, 0)
    assert np.isin(impulse, (0, 255)).mean() == pytest.approx(0.27, abs=0.005)
    assert np.abs(corrupt(grey, "brightness", 3, 0) - (128 + 0.3 * 255)).max() < 1
    halves = grey.copy()
    halves[:112] = 0
    kept = corrupt(halves, "contrast", 2, 0).astype(int)
    assert np.ptp(kept) == pytest.approx(0.3 * 128, abs=1)
    for name in ("defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "pixelate"):
        assert np.abs(corrupt(grey, name, 5, 0).astype(int) - 128).max() <= 1, name


def _classes(images: Array) -> Array:
    """Return scores of a classifier of the mean brightness: dark or bright."""
    bright = images.mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - bright, bright], axis=1)


def test_accuracy_is_counted_and_paired_with_the_images_as_they_are() -> None:
    """A classifier of brightness loses dark images to brightness and snow, and none to blur."""
    images = np.concatenate([np.full((20, 16, 16, 3), v, np.uint8) for v in (100, 160)])
    calls: list[tuple[int, int]] = []
    labels = np.repeat([0, 1], 20)
    found = measure_robustness(_classes, images, labels, 0, lambda *c: calls.append(c))
    assert (found.images, found.clean.value, len(found.cells)) == (40, 1.0, VERSIONS)
    assert calls[-1] == (40 * 71, 40 * 71)
    bright = found.severities_of("brightness")
    assert [cell.severity for cell in bright] == list(SEVERITIES)
    assert [cell.accuracy.value for cell in bright] == [1.0, 0.5, 0.5, 0.5, 0.5]
    assert bright[1].difference.only_a_right == 20
    assert bright[1].difference.p_value < 1e-5
    assert found.by_corruption["brightness"].value == pytest.approx(0.6)
    blurred = found.by_corruption["defocus_blur"]
    assert blurred.low < blurred.value == 1.0  # 40 images do not make it certain
    mean = np.mean([cell.accuracy.value for cell in found.cells])
    assert (found.mean.value, found.loss.value) == pytest.approx((mean, mean - 1))
    assert found.loss.low < found.loss.value < found.loss.high < 0
    assert found == measure_robustness(_classes, images, labels, 0)
    assert {"corrupted_accuracy_loss", "corrupted_accuracy/snow"} < set(found.metrics)
    groups = ImageGroups.of(labels)  # nothing is known from two patients
    grouped = measure_robustness(_classes, images, labels, 0, groups=groups)
    cell = grouped.severities_of("brightness")[1]
    assert (cell.accuracy.value, cell.difference.p_value) == (0.5, 1.0)
    assert max(grouped.by_corruption["brightness"].low, cell.accuracy.low) < 0.1
    assert grouped.loss.high > 0
    assert grouped.clean.low < 0.5


def test_a_sample_is_random_and_the_same_each_time() -> None:
    """Fewer images than asked for are all of them."""
    rows = sample_rows(1000, 50, 3)
    assert len(set(rows.tolist())) == 50
    assert (rows == sample_rows(1000, 50, 3)).all()
    assert (rows != sample_rows(1000, 50, 4)).any()
    assert sample_rows(7, 50, 3).tolist() == list(range(7))
