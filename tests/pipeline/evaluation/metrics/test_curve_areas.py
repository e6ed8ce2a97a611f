"""Areas under the curves against scikit-learn, ties and extremes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.statistical_methods import Setting, simulate_intervals
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.curve_areas import (
    Areas,
    average_precision,
    roc_auc,
)

Array = np.ndarray[Any, Any]


def scores(n: int, seed: int, steps: int) -> tuple[Array, Array]:
    """Return scores with ties, and labels with at least one of either kind."""
    generator = np.random.default_rng(seed)
    positive = generator.uniform(size=n) < 0.3
    positive[:2] = True, False
    return np.round((generator.normal(size=n) + positive) * steps) / steps, positive


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
        assert 0 <= ours.low < ours.high <= 1
        assert ours.low <= ours.value <= ours.high
        assert ours.n == n


def test_perfect_ranking_is_not_taken_for_certain() -> None:
    """With no image ranked wrongly the interval ends at 1, and is narrower with more images."""
    lows = []
    for n in (10, 100):
        positive = np.arange(n) >= n // 2
        estimate = roc_auc(np.arange(n), positive)
        assert estimate is not None
        assert estimate.value == estimate.high == 1
        lows.append(estimate.low)
    assert 0.5 < lows[0] < lows[1] < 1


def test_mean_is_over_the_classes_with_images() -> None:
    """A class without images takes no part in the mean, and its column does no harm."""
    labels = np.arange(30) % 2 * 2
    probabilities = softmax(np.random.default_rng(0).normal(size=(30, 3)) + np.eye(3)[labels])
    areas = Areas.of(probabilities, labels)
    for found, theirs in zip(areas, (roc_auc_score, average_precision_score), strict=True):
        expected = [theirs(labels == k, probabilities[:, k]) for k in (0, 2)]
        assert found is not None
        assert found.macro.value == pytest.approx(np.mean(expected))
        assert found.by_class[1] is None


def test_intervals_cover_for_twenty_images() -> None:
    """In 40 samples of 20 images no metric's interval misses the truth much more than it may."""
    found = simulate_intervals(Setting((1 / 3,) * 3, 0.8), 20, 40)
    assert len(found) > 15
    assert {one.metric for one in found if one.covered < 0.86} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "accuracy", "images"),
    [((0.5, 0.5), 0.99, 20), ((0.6, 0.3, 0.1), 0.9, 20), ((0.1,) * 10, 0.7, 100)],
    ids=["two classes", "uneven classes", "ten classes"],
)
def test_intervals_cover_as_often_as_the_table_says(
    shares: tuple[float, ...], accuracy: float, images: int
) -> None:
    """In 150 samples every metric's interval holds the truth in nearly 90% or more."""
    found = simulate_intervals(Setting(shares, accuracy), images, 150)
    assert {one.metric for one in found if one.covered < 0.86} == set()
