"""Intervals of proportions against exact enumeration and scipy, and what every interval must do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from patchline.pipeline.evaluation.metrics.intervals import (
    MetricEstimate,
    f1_of_jaccard,
    mid_p_bounds,
    proportion,
    proportions,
    with_effective_size,
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
