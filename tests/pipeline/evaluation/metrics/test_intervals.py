"""Intervals of proportions against exact enumeration and scipy, and what every interval must do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest

from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    f1_of_jaccard,
    mid_p_bounds,
    proportion,
    proportions,
    share,
    with_effective_size,
)
from patchline.pipeline.evaluation.metrics.paired_test import (
    compute_paired_difference,
    sign_flip_p_value,
)

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50, 200])
def test_interval_of_a_proportion_covers_as_often_as_it_says(n: int) -> None:
    """For every true share in 90% or more; over all, with many samples, in 93% to 97%."""
    outcomes, shares = np.arange(n + 1), np.linspace(0.001, 0.999, 999)
    low, high = mid_p_bounds(outcomes, np.full(n + 1, n))
    held = (low[:, None] <= shares) & (shares <= high[:, None])
    covered = (stats.binom.pmf(outcomes[:, None], n, shares) * held).sum(axis=0)
    assert covered.min() >= 0.9
    assert n < 20 or 0.93 <= covered.mean() <= 0.97


@given(counts)
def test_ends_have_half_the_observed_probability_in_their_tails(given: tuple[int, int]) -> None:
    """At the lower end, P(more) + P(as many) / 2 is 2.5%; at the upper end likewise, mirrored."""
    successes, n = given
    estimate = proportion(successes, n)
    assert (estimate.value, estimate.n) == (successes / n, n)
    for end, tail, extreme in (
        (estimate.low, stats.binom(n, estimate.low).sf(successes), successes == 0),
        (estimate.high, stats.binom(n, estimate.high).cdf(successes - 1), successes == n),
    ):
        if extreme:
            assert end == float(successes == n)
        else:
            assert tail + stats.binom(n, end).pmf(successes) / 2 == pytest.approx(0.025, abs=1e-6)


def test_no_samples_say_nothing() -> None:
    """Without samples the interval is everything."""
    everything = MetricEstimate(value=0.0, low=0.0, high=1.0, n=0)
    assert proportion(0, 0) == everything
    assert proportions(np.array([0, 3]), np.array([0, 4])) == [everything, proportion(3, 4)]


def test_f1_of_a_class_is_from_the_share_of_the_union() -> None:
    """Of 6 hits, 2 missed and 3 wrongly called images, F1 is 12 / 17, from 11 images."""
    jaccard = proportion(6, 11)
    estimate = f1_of_jaccard(jaccard)
    assert estimate.value == pytest.approx(12 / 17)
    assert estimate.n == 11
    assert estimate.low == pytest.approx(2 * jaccard.low / (1 + jaccard.low))
    assert estimate.high == pytest.approx(2 * jaccard.high / (1 + jaccard.high))


@given(counts)
def test_effective_size_of_a_proportion_is_its_n(given: tuple[int, int]) -> None:
    """A figure as uncertain as a proportion of n has the interval of that proportion."""
    successes, n = given
    found = with_effective_size(successes / n, n=n, effective_n=n)
    assert (found.low, found.high) == pytest.approx(
        (proportion(successes, n).low, proportion(successes, n).high), abs=1e-6
    )


def test_interval_is_widened_to_a_biased_value() -> None:
    """Where the interval is made around another centre, it still reaches the value."""
    found = with_effective_size(0.9, n=50, effective_n=500.0, centre=0.5)
    assert found.low == pytest.approx(proportion(250, 500).low)
    assert found.high == 0.9


def test_range_of_a_figure_can_be_another_one() -> None:
    """A correlation of 0 has an interval that is even around 0, and none says -1 to 1."""
    found = with_effective_size(0.0, n=50, effective_n=50.0, ends=(-1.0, 1.0))
    assert found.low == pytest.approx(-found.high)
    nothing = with_effective_size(0.0, n=0, effective_n=0.0, ends=(-1.0, 1.0))
    assert (nothing.low, nothing.high) == (-1.0, 1.0)


def _groups(sizes: list[int]) -> ImageGroups:
    groups = ImageGroups.of(np.repeat([f"patient {k}" for k in range(len(sizes))], sizes))
    assert groups is not None
    return groups


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
    one = compute_paired_difference(copies[:20], ~copies[:20], _groups([20]))
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
