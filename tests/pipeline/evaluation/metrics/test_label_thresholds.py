"""A threshold has the highest F1 on validation images, or is 0.5 where they are too few."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from patchline.pipeline.evaluation.metrics.label_calibration import fit_label_thresholds


@pytest.mark.parametrize("digits", [1, 9])
def test_no_other_threshold_has_a_higher_f1(digits: int) -> None:
    """As scikit-learn computes it, with many equal probabilities too."""
    generator = np.random.default_rng(digits)
    labels = (generator.random((45, 3)) < (0.4, 0.5, 0.6)).astype(np.uint8)
    scores = np.clip(0.35 * labels + 0.7 * generator.random((45, 3)), 0, 1).round(digits)
    fit = fit_label_thresholds(scores, labels)
    assert fit.fitted == (True, True, True)
    for k in range(3):
        own = f1_score(labels[:, k], fit.predicted(scores)[:, k])
        others = [f1_score(labels[:, k], scores[:, k] >= each) for each in np.unique(scores[:, k])]
        assert own == pytest.approx(max(others), abs=1e-12)


def test_a_threshold_is_no_probability_that_occurs() -> None:
    """Float32 or float64 gives the same labels."""
    generator = np.random.default_rng(5)
    labels = (generator.random((300, 2)) < 0.4).astype(np.uint8)
    scores = generator.random((300, 2)) * 0.6 + 0.3 * labels
    assert np.abs(scores - fit_label_thresholds(scores, labels).values).min() > 1e-6


def test_of_equally_good_thresholds_the_one_nearest_to_one_half_is_taken() -> None:
    """Where the labels are separated, it lies in the middle of the gap."""
    labels = np.repeat([[0], [1]], 20, axis=0)
    assert fit_label_thresholds(np.where(labels, 0.9, 0.3), labels).values == pytest.approx((0.6,))


def test_labels_of_few_images_keep_one_half_and_are_named() -> None:
    """Nine images with a label, or without it, tell no threshold."""
    labels = np.zeros((100, 3), np.uint8)
    labels[:9, 0], labels[:10, 1], labels[:91, 2] = 1, 1, 1
    scores = np.where(labels, 0.2, 0.1)
    fit = fit_label_thresholds(scores, labels)
    assert fit.fitted == (False, True, False)
    assert fit.values == pytest.approx((0.5, 0.15, 0.5))
    assert "0.5 for cat, sky: fewer than 10 of 100" in fit.sentence(("cat", "dog", "sky"))
    assert fit_label_thresholds(scores[:5], labels[:5]).sentence("abc").startswith("0.5 for every")
