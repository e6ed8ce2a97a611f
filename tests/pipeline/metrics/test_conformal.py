"""Conformal thresholds hold their guarantee on data whose distribution is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from patchline.pipeline.metrics.conformal import (
    conformal_threshold,
    fewest_for,
    least_probability,
    set_members,
)

Array = np.ndarray[Any, Any]
DRAWS = 2000


@pytest.mark.parametrize(("n", "level"), [(19, 0.95), (50, 0.9), (200, 0.95), (150, 0.99)])
def test_the_level_is_exact_for_continuous_scores(n: int, level: float) -> None:
    """Of uniform scores, a threshold is exceeded by its own size; the mean is k / (n + 1)."""
    generator = np.random.default_rng(n)
    thresholds = [conformal_threshold(generator.random(n), level) for _ in range(DRAWS)]
    held = np.array(thresholds, float)
    rank = int(np.ceil(round((n + 1) * level, 9)))
    error = stats.beta(rank, n + 1 - rank).std() / np.sqrt(DRAWS)
    assert held.mean() == pytest.approx(rank / (n + 1), abs=4 * error)
    assert rank / (n + 1) >= level


def test_sets_cover_the_true_class_as_often_as_promised() -> None:
    """Drawn labels are in the sets at the promised rate, within binomial bounds of many draws."""
    generator, level, n, classes = np.random.default_rng(0), 0.9, 100, 5
    covered = 0
    for _ in range(DRAWS):
        logits = 2 * generator.standard_normal((n + 1, classes))
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        # The model is wrong about its own certainty: labels follow less extreme probabilities.
        milder = probabilities**0.5 / (probabilities**0.5).sum(axis=1, keepdims=True)
        labels = (milder.cumsum(axis=1) > generator.random((n + 1, 1))).argmax(axis=1)
        own = probabilities[np.arange(n + 1), labels]
        least = least_probability(own[:-1], level)
        assert least is not None
        covered += bool(set_members(probabilities[-1:], least)[0, labels[-1]])
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], DRAWS, np.ceil(level * (n + 1)) / (n + 1))
    assert low <= covered <= high


def test_groups_are_held_to_the_level_where_single_images_are_not() -> None:
    """With strong effects of a group and unequal sizes, an image of a new group is covered."""
    generator, level, groups = np.random.default_rng(1), 0.9, 30
    by_group, by_image = [], []
    for _ in range(DRAWS):
        # Large groups have small scores, so that pooled images promise too much.
        sizes = generator.integers(1, 40, groups)
        means = generator.exponential(20 / sizes)
        scores = np.concatenate(
            [generator.normal(m, 0.1, s) for m, s in zip(means, sizes, strict=True)]
        )
        names = np.repeat(np.arange(groups).astype(str), sizes).tolist()
        size = generator.integers(1, 40)
        new = generator.normal(generator.exponential(20 / size), 0.1)
        thresholds = (conformal_threshold(scores, level, names), conformal_threshold(scores, level))
        by_group.append(new <= float(str(thresholds[0])))
        by_image.append(new <= float(str(thresholds[1])))
    error = np.sqrt(level * (1 - level) / DRAWS)
    assert np.mean(by_group) >= level - 4 * error
    assert np.mean(by_group) <= level + 1 / groups + 4 * error
    assert np.mean(by_image) < level - 4 * error


@given(st.integers(1, 300), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]), st.integers(0, 9))
def test_the_threshold_is_the_order_statistic_of_the_paper(n: int, level: float, seed: int) -> None:
    """It is the ceil((n + 1) level)-th smallest score; with fewer images it is not known."""
    scores = np.random.default_rng(seed).random(n)
    rank = int(np.ceil(round((n + 1) * level, 9)))
    threshold = conformal_threshold(scores, level)
    assert threshold == (None if rank > n else np.sort(scores)[rank - 1])
    assert (threshold is None) == (n < fewest_for(level))
    assert threshold == conformal_threshold(scores, level, [str(each) for each in range(n)])


def test_the_fewest_images_are_those_of_the_order_statistic() -> None:
    """The numbers that messages name: 9 images for 90%, 19 for 95%, 99 for 99%."""
    assert [fewest_for(level) for level in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]


def test_a_set_is_never_empty() -> None:
    """The most probable class is in its set, however small its probability is."""
    members = set_members(np.array([[0.4, 0.35, 0.25], [0.9, 0.1, 0.0]]), 0.5)
    assert members.tolist() == [[True, False, False], [True, False, False]]
    assert set_members(np.array([[0.4, 0.35, 0.25]]), 0.3).sum() == 2
