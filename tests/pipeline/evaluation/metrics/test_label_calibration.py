"""Each label of a multi-label classifier is calibrated where its images tell how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import f1_score

from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.label_calibration import (
    fit_label_calibration,
    fit_label_thresholds,
    sigmoid,
)

Array = np.ndarray[Any, Any]
_SCALES, _SHIFTS = np.array([0.5, 1.0, 2.0]), np.array([-1.0, 0.0, 1.5])


def _draw(images: int, *, seed: int) -> tuple[Array, Array]:
    """Return logits of three labels whose right calibration is known, and labels."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(images, 3))
    chance = sigmoid(_SCALES * logits + _SHIFTS)
    return logits, (generator.random((images, 3)) < chance).astype(np.uint8)


def test_hidden_scales_and_shifts_are_found() -> None:
    """With many images, both are those of the labels, whatever the prior."""
    fit = fit_label_calibration(*_draw(20000, seed=1))
    assert fit.is_determined
    assert fit.scales == pytest.approx(_SCALES, rel=0.08)
    assert fit.shifts == pytest.approx(_SHIFTS, abs=0.1)


def test_the_posterior_is_maximal() -> None:
    """A general optimizer finds no better scale and shift."""
    logits, labels = _draw(60, seed=2)
    logits[:, 0] = np.where(labels[:, 0] > 0, 9.0, -30.0)  # separable: the prior alone ends it
    fit = fit_label_calibration(logits, labels)
    assert fit.is_determined
    for k in range(3):

        def loss(at: Array, k: int = k) -> float:
            scaled = np.exp(at[0]) * logits[:, k] + at[1]
            likelihood = np.logaddexp(0, scaled) - labels[:, k] * scaled
            return float(likelihood.sum() + (at[0] / 0.35) ** 2 / 2 + (at[1] / 2) ** 2 / 2)

        own = loss(np.array([np.log(fit.scales[k]), fit.shifts[k]]))
        assert own <= minimize(loss, [0.0, 0.0], options={"gtol": 1e-9}).fun + 1e-8


def test_labels_of_few_images_stay_as_they_are_and_are_named() -> None:
    """So are labels that nearly every image has."""
    logits, labels = _draw(400, seed=3)
    labels[:, 0], labels[:, 2] = 0, 1
    labels[:9, 0], labels[:9, 2] = 1, 0
    fit = fit_label_calibration(logits, labels)
    assert fit.determined == (False, True, False)
    assert (fit.scales[0], fit.shifts[0]) == (fit.scales[2], fit.shifts[2]) == (1.0, 0.0)
    assert fit.positives == (9, int(labels[:, 1].sum()), 391)
    assert "1 of 3 labels, fitted on 400 validation images; cat, sky are not" in fit.sentence(
        ("cat", "dog", "sky")
    )
    np.testing.assert_array_equal(fit.probabilities(logits)[:, 0], sigmoid(logits[:, 0]))


def test_outputs_that_are_not_finite_are_an_error() -> None:
    """The remedy is named."""
    logits, labels = _draw(20, seed=4)
    logits[3, 1] = np.nan
    with pytest.raises(RunError, match=r"1 of 20 validation images are not finite .* float32"):
        fit_label_calibration(logits, labels)


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
