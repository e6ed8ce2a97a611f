"""Images of one group are one observation: in the paired test, and in the intervals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, proportion, share
from patchline.pipeline.evaluation.metrics.paired_test import (
    paired_difference,
    sign_flip_p_value,
)


def _groups(sizes: list[int]) -> ImageGroups:
    groups = ImageGroups.of(np.repeat([f"patient {k}" for k in range(len(sizes))], sizes))
    assert groups is not None
    return groups


@settings(max_examples=30)
@given(st.lists(st.integers(-30, 30), max_size=9))
def test_the_p_value_counts_all_assignments_of_signs(wins: list[int]) -> None:
    """It is the share of the 2^G signs whose sum is at least as far from 0 as the observed one."""
    sums = [np.dot(signs, wins) for signs in product((-1, 1), repeat=len(wins))]
    extreme = np.mean([abs(each) >= abs(sum(wins)) for each in sums])
    assert sign_flip_p_value(np.array(wins, float)) == pytest.approx(extreme, abs=1e-12)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (3, 9), (2000, 2300)])
def test_groups_of_one_image_have_the_p_value_of_mcnemar(only_a: int, only_b: int) -> None:
    """Also for so many that nobody could count the assignments."""
    wins = np.repeat([-1.0, 1.0, 0.0], [only_a, only_b, 7])
    expected = binomtest(only_b, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert sign_flip_p_value(wins) == pytest.approx(expected, abs=1e-11)


def test_an_interval_is_as_wide_as_that_of_the_groups() -> None:
    """Equal frames of a patient count once; with no relation, nearly all images count."""
    generator = np.random.default_rng(0)
    groups = _groups([20] * 100)
    copies = np.repeat(generator.random(100) < 0.7, 20)
    by_groups, once = share(copies, groups), proportion(int(copies[::20].sum()), 100)
    assert by_groups.n == 2000
    assert by_groups.high - by_groups.low == pytest.approx(once.high - once.low, rel=0.03)
    unrelated = generator.random(2000) < 0.7
    free, alone = share(unrelated, groups), share(unrelated, None)
    assert 1 <= (free.high - free.low) / (alone.high - alone.low) < 1.2
    assert share(np.ones(2000, bool), groups).low < 0.98  # no error among 100 groups, not 2,000
    one = paired_difference(copies[:20], ~copies[:20], _groups([20]))
    assert (one.difference.low, one.difference.high) == (-1.0, 1.0)  # one group tells nothing


def test_errors_in_few_groups_are_not_taken_for_the_rule() -> None:
    """Of 300 samples at least 93% hold the accuracy.

    A tenth of thirty uneven groups has half of its images wrong, which one sample may hardly show.
    """
    generator, held = np.random.default_rng(4), 0
    for _ in range(300):
        sizes = generator.geometric(0.1, 30)
        rates_N = np.repeat(np.where(generator.random(30) < 0.1, 0.5, 0.0), sizes)
        found = share(generator.random(len(rates_N)) >= rates_N, _groups(list(sizes)))
        held += found.low <= 0.95 <= found.high
    assert held >= 279
    one_bad = share(np.arange(2000) >= 20, _groups([20] * 100))
    once = proportion(99, 100)  # a hundredth of the groups, and no more is known
    assert one_bad.low == pytest.approx(once.low, abs=0.004)
