"""Intervals against scipy, published values, and what every interval must do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.metrics.intervals import MetricEstimate, bootstrap, proportion

Array = np.ndarray[Any, Any]
counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return Wilson's interval from its formula (Wilson 1927, Journal of the ASA 22)."""
    z = float(stats.norm.ppf(0.975))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return centre - half, centre + half


@given(counts)
def test_proportion_has_wilsons_interval(given_counts: tuple[int, int]) -> None:
    """The interval of a proportion is that of Wilson's formula."""
    successes, n = given_counts
    estimate = proportion(successes, n)
    assert (estimate.value, estimate.n) == (successes / n, n)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(successes, n), abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Statistics in Medicine 17, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_proportion_has_the_published_interval(
    successes: int, n: int, low: float, high: float
) -> None:
    """The interval is the one that Newcombe's comparison of methods prints for Wilson's score."""
    estimate = proportion(successes, n)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


@given(counts)
def test_interval_holds_the_proportion_and_stays_between_0_and_1(
    given_counts: tuple[int, int],
) -> None:
    """The interval contains the value, never leaves [0, 1], and never has width 0."""
    estimate = proportion(*given_counts)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high


@given(counts)
def test_successes_and_failures_mirror_each_other(given_counts: tuple[int, int]) -> None:
    """The interval of the failures is that of the successes, mirrored."""
    successes, n = given_counts
    one, other = proportion(successes, n), proportion(n - successes, n)
    assert (1 - other.high, 1 - other.low) == pytest.approx((one.low, one.high), abs=1e-9)


def test_more_samples_narrow_the_interval() -> None:
    """With the same share and a hundredfold number of samples the interval is a tenth as wide."""
    few, many = proportion(80, 100), proportion(8000, 10_000)
    ratio = (few.high - few.low) / (many.high - many.low)
    assert ratio == pytest.approx(10, rel=0.05)


def test_no_samples_say_nothing() -> None:
    """Without samples the interval is everything."""
    assert proportion(0, 0) == MetricEstimate(value=0.0, low=0.0, high=1.0, n=0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_interval_covers_the_truth_as_often_as_it_says(share: float) -> None:
    """Of many samples about 95 % have an interval that contains the true share."""
    hits = np.random.default_rng(0).binomial(150, share, 500)
    estimates = {int(k): proportion(int(k), 150) for k in np.unique(hits)}
    covered = np.mean([estimates[int(k)].low <= share <= estimates[int(k)].high for k in hits])
    assert 0.92 <= covered <= 0.98


def test_bootstrap_is_reproducible() -> None:
    """The same samples give the same interval; another seed gives another one."""
    values = np.random.default_rng(0).normal(size=80)

    def mean(sample: Array) -> float:
        return float(values[sample].mean())

    assert bootstrap(mean, 80) == bootstrap(mean, 80)
    assert bootstrap(mean, 80, seed=1) != bootstrap(mean, 80, seed=2)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40),
    which=st.sampled_from(["mean", "max", "median"]),
    seed=st.integers(0, 100),
)
def test_bootstrap_interval_contains_the_value(values: list[float], which: str, seed: int) -> None:
    """The figure lies in its own interval, also where resampling is biased, as for a maximum."""
    array = np.array(values)
    statistics: dict[str, Callable[[Array], Any]] = {
        "mean": np.mean,
        "max": np.max,
        "median": np.median,
    }
    statistic = statistics[which]
    estimate = bootstrap(
        lambda sample: float(statistic(array[sample])), len(array), seed=seed, resamples=60
    )
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.value == pytest.approx(float(statistic(array)))
    assert estimate.n == len(values)


def test_bootstrap_of_a_mean_agrees_with_scipy_and_theory() -> None:
    """The interval of a mean is scipy's percentile bootstrap and the normal one, up to noise."""
    values = np.random.default_rng(5).normal(10, 2, 400)
    estimate = bootstrap(lambda sample: float(values[sample].mean()), 400, resamples=4000)
    reference = stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    half = 1.96 * values.std() / 20
    assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high), abs=0.02)
    assert (estimate.low, estimate.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=0.02
    )


def test_bootstrap_draws_n_of_n_with_replacement() -> None:
    """Each resample has n positions in range, with repeats; the value comes from all in order."""
    seen: list[Array] = []

    def remember(sample: Array) -> float:
        seen.append(sample)
        return 0.0

    bootstrap(remember, 25, resamples=30)
    assert len(seen) == 31
    assert all(len(sample) == 25 and set(sample) <= set(range(25)) for sample in seen)
    complete = [sample for sample in seen if len(set(sample)) == 25]
    assert len(complete) == 1
    assert np.array_equal(complete[0], np.arange(25))


def test_constant_figure_has_an_interval_without_width() -> None:
    """What does not vary has no uncertainty."""
    estimate = bootstrap(lambda _sample: 0.5, 10)
    assert (estimate.low, estimate.value, estimate.high) == (0.5, 0.5, 0.5)
