"""Areas under the curves against scikit-learn, ties and extremes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from pipeline.metrics.classification import softmax
from pipeline.metrics.ranking import (
    _precision_area,
    _roc_area,
    average_precision,
    macro_average_precision,
    macro_roc_auc,
    roc_auc,
)

Array = np.ndarray[Any, Any]


def scores(n: int, seed: int, steps: int) -> tuple[Array, Array]:
    """Return scores with ties, and labels with at least one of either kind."""
    generator = np.random.default_rng(seed)
    positive = generator.uniform(size=n) < 0.3
    positive[:2] = True, False
    return np.round((generator.normal(size=n) + positive) * steps) / steps, positive


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 80), st.integers(0, 10_000), st.integers(1, 50))
def test_areas_equal_scikit_learns(n: int, seed: int, steps: int) -> None:
    """Both areas are scikit-learn's, also where scores tie; the intervals hold them."""
    found, positive = scores(n, seed, steps)
    for ours, theirs in (
        (roc_auc(found, positive), roc_auc_score),
        (average_precision(found, positive), average_precision_score),
    ):
        assert ours is not None
        assert ours.value == pytest.approx(theirs(positive, found))
        assert 0 <= ours.low <= ours.value <= ours.high <= 1
        assert ours.low < ours.high
        assert ours.n == n


@pytest.mark.parametrize("area_of", [_roc_area, _precision_area])
def test_influences_are_what_a_repeated_image_adds(area_of: Any) -> None:
    """Doubling one image, of many, moves the area by its influence times its weight."""
    found, positive = scores(4000, 1, 10**6)
    area = area_of(found, positive)
    correction = np.sqrt(positive.sum() / (positive.sum() - 1))
    for i in range(0, 4000, 400):
        more = area_of(np.append(found, found[i]), np.append(positive, positive[i]))
        moved = more.value - area.value
        assert moved == pytest.approx(area.influences_N[i] / correction, rel=0.05, abs=2e-6)


def test_perfect_ranking_is_not_taken_for_certain() -> None:
    """With no image ranked wrongly the interval ends at 1, and is narrower with more images."""
    lows = []
    for n in (10, 100, 1000):
        positive = np.arange(n) >= n // 2
        estimate = roc_auc(np.arange(n), positive)
        assert estimate is not None
        assert estimate.value == estimate.high == 1
        lows.append(estimate.low)
    assert 0.5 < lows[0] < lows[1] < lows[2] < 1


def test_areas_need_both_kinds() -> None:
    """Without a positive, or without a negative, there is no area."""
    for positive in (np.zeros(3, bool), np.ones(3, bool), np.zeros(0, bool)):
        assert roc_auc(np.arange(len(positive)), positive) is None
        assert average_precision(np.arange(len(positive)), positive) is None


def test_two_classes_are_one_area() -> None:
    """With two classes the mean over the classes has the area and interval of either."""
    labels = np.arange(40) % 2
    probabilities = softmax(np.random.default_rng(0).normal(size=(40, 2)) + np.eye(2)[labels])
    macro, own = macro_roc_auc(probabilities, labels), roc_auc(probabilities[:, 1], labels == 1)
    assert own is not None
    assert macro.model_dump() == pytest.approx(own.model_dump(), abs=1e-6)


def test_mean_is_over_the_classes_with_images() -> None:
    """A class without images takes no part in the mean, and its column does no harm."""
    labels = np.arange(30) % 2 * 2
    probabilities = softmax(np.random.default_rng(0).normal(size=(30, 3)) + np.eye(3)[labels])
    for macro, theirs in (
        (macro_roc_auc, roc_auc_score),
        (macro_average_precision, average_precision_score),
    ):
        expected = [theirs(labels == k, probabilities[:, k]) for k in (0, 2)]
        assert macro(probabilities, labels).value == pytest.approx(np.mean(expected))
