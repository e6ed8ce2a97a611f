"""Conformal thresholds hold their guarantee on data whose distribution is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.evaluation.metrics.conformal import (
    conformal_threshold,
    fewest_for,
    set_members,
)

DRAWS = 500


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
        new = generator.normal(generator.exponential(20 / generator.integers(1, 40)), 0.1)
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
    assert (threshold is None) == (
        n < fewest_for(level) == int(np.ceil(round(level / (1 - level), 9)))
    )
    assert threshold == conformal_threshold(scores, level, [str(each) for each in range(n)])


def test_a_set_is_never_empty() -> None:
    """The most probable class is in its set, however small its probability is."""
    members = set_members(np.array([[0.4, 0.35, 0.25], [0.9, 0.1, 0.0]]), 0.5)
    assert members.tolist() == [[True, False, False], [True, False, False]]
    assert set_members(np.array([[0.4, 0.35, 0.25]]), 0.3).sum() == 2
