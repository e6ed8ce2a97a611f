"""Reliability diagram and expected calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.evaluation.metrics.calibration import (
    TopProbabilities,
    calibration_error_of,
    class_shares,
    reliability_of,
)
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, proportion
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from tests.pipeline.evaluation.metrics.classifiers import Array, calibrated, predictions, sample


@given(st.floats(0.2, 5))
def test_calibration_can_be_undone(temperature: float) -> None:
    """Probabilities with a temperature and a bias, taken back, are the uncalibrated ones."""
    logits, _ = sample(20, 4)
    fit = TemperatureFit(temperature=temperature, bias=(0.0, -1.0, 0.5, 0.1), state="fitted")
    undone = fit.uncalibrated_probabilities(softmax(fit.logits(logits)))
    assert np.allclose(undone, softmax(logits), atol=1e-9)


@given(predictions, st.integers(1, 15))
def test_each_bin_has_its_images_their_confidence_and_hits(
    prediction: tuple[Array, Array], bins: int
) -> None:
    """Bins have equal widths and their upper ends; the error is the mean distance in them."""
    probabilities, labels = prediction
    sure, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for k, one in enumerate(reliability_of(TopProbabilities.of(probabilities, labels), bins)):
        assert (one.low, one.high) == pytest.approx((k / bins, (k + 1) / bins))
        inside = np.ceil(sure * bins).astype(int) - 1 == k
        assert one.accuracy == proportion(int(hits[inside].sum()), int(inside.sum()))
        confidence = sure[inside].mean() if inside.any() else (one.low + one.high) / 2
        assert one.confidence == pytest.approx(confidence)
        expected += inside.mean() * abs(confidence - hits[inside].mean()) if inside.any() else 0
    if bins == 10:
        assert calibration_error_of(
            TopProbabilities.of(probabilities, labels)
        ).value == pytest.approx(expected)


def test_interval_of_calibrated_probabilities_reaches_nearly_0() -> None:
    """Probabilities that are right leave a gap by chance, and the interval says that it may be."""
    estimate = calibration_error_of(TopProbabilities.of(*calibrated(300, 3, seed=4)))
    assert estimate.low < 0.01 < estimate.value


def test_interval_of_overconfident_probabilities_excludes_0() -> None:
    """Probabilities that are far too sure are found out."""
    probabilities, labels = calibrated(1000, 3, skill=1.0)
    sure = TemperatureFit(temperature=3.0, state="fitted").uncalibrated_probabilities(probabilities)
    assert calibration_error_of(TopProbabilities.of(sure, labels)).low > 0.1


def test_the_mean_probability_of_a_class_is_compared_with_its_share() -> None:
    """Calibrated classes agree but by chance; doubled odds differ; few images tell nothing."""
    alarms = 0
    for seed in range(30):
        generator = np.random.default_rng(seed)
        probabilities = generator.dirichlet((8, 1.4, 0.6), 400)
        labels = (generator.random((400, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
        found = class_shares(probabilities, labels)
        alarms += any(each.state == "differs" for each in found)
        assert found[0].share.value == (labels == 0).mean()
        tripled = probabilities * (1, 1, 3)
        tripled /= tripled.sum(axis=1, keepdims=True)
        assert class_shares(tripled, labels)[2].state == "differs"
        assert class_shares(probabilities[:12], labels[:12])[2].state == "unknown"
    assert alarms <= 5  # 1.5 expected
    rows = np.repeat(np.arange(12), 30)
    assert class_shares(tripled[rows], labels[rows], ImageGroups.of(rows))[2].state != "differs"
