"""McNemar's exact test and the interval of the difference of two classifiers."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from patchline.pipeline.metrics.paired_test import PairedDifference, is_better, paired_difference

Array = np.ndarray[Any, Any]
tables = st.tuples(*(st.integers(0, 40),) * 4).filter(lambda table: sum(table) > 0)


def compared(both: int, only_a: int, only_b: int, neither: int) -> PairedDifference:
    """Return the comparison of two models with these counts of images."""
    counts = (both, only_a, only_b, neither)
    a = np.repeat([True, True, False, False], counts)
    return paired_difference(a, np.repeat([True, False, True, False], counts))


@given(tables)
def test_p_value_is_the_sum_of_the_binomial_tail(table: tuple[int, int, int, int]) -> None:
    """The p-value is twice the probability of so few, or fewer, of the rarer kind, 1 at most."""
    _, only_a, only_b, _ = table
    discordant = only_a + only_b
    tail = sum(comb(discordant, k) for k in range(min(only_a, only_b) + 1)) / 2**discordant
    assert compared(*table).p_value == pytest.approx(min(1.0, 2 * tail))


def test_counts_and_difference_are_of_b_minus_a() -> None:
    """A model b that alone gets 9 of 100 right, against 4 of a's, is better by 5 points."""
    pair = compared(80, 4, 9, 7)
    assert (pair.only_a_right, pair.only_b_right) == (4, 9)
    assert (pair.difference.value, pair.difference.n) == (0.05, 100)


def score(table: tuple[int, int, int, int], difference: float) -> float:
    """Return the score statistic of a difference; the share of `only_a` is found by search."""
    both, only_a, only_b, neither = table
    n = sum(table)

    def surprise(share: float) -> float:
        logs = xlogy(only_b, share + difference) + xlogy(only_a, share)
        return -float(logs + xlogy(both + neither, 1 - 2 * share - difference))

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    share = minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    variance = n * (2 * share + difference - difference**2)
    return float((only_b - only_a - n * difference) / np.sqrt(variance))


@pytest.mark.parametrize(
    "table", [(80, 4, 9, 7), (43, 3, 1, 2), (36, 12, 2, 1), (5, 1, 9, 5), (900, 20, 40, 40)]
)
def test_ends_are_where_the_score_test_rejects(table: tuple[int, int, int, int]) -> None:
    """At both ends Tango's statistic is the normal distribution's 97.5% quantile."""
    difference = compared(*table).difference
    assert score(table, difference.low) == pytest.approx(1.96, abs=1e-3)
    assert score(table, difference.high) == pytest.approx(-1.96, abs=1e-3)


@settings(deadline=None)
@given(tables)
def test_interval_holds_the_difference(table: tuple[int, int, int, int]) -> None:
    """The interval holds the difference, stays between -1 and 1, and has some width."""
    difference = compared(*table).difference
    assert -1 <= difference.low <= difference.value <= difference.high <= 1
    assert difference.low < difference.high


@settings(deadline=None)
@given(tables)
def test_exchanging_the_models_mirrors_everything(table: tuple[int, int, int, int]) -> None:
    """Exchanged, the models have the difference with the other sign, and the same p-value."""
    both, only_a, only_b, neither = table
    one, other = compared(*table), compared(both, only_b, only_a, neither)
    assert one.p_value == other.p_value
    assert one.difference.low == pytest.approx(-other.difference.high, abs=1e-6)
    assert one.difference.high == pytest.approx(-other.difference.low, abs=1e-6)


def test_no_images_say_nothing() -> None:
    """Without images the difference may be anything, and nothing is better."""
    pair = paired_difference(np.empty(0, bool), np.empty(0, bool))
    assert (pair.difference.low, pair.difference.value, pair.difference.high) == (-1, 0, 1)
    assert (pair.p_value, pair.difference.n) == (1.0, 0)
    assert not is_better(pair)


@pytest.mark.parametrize(
    ("only_a", "only_b", "better"),
    [(0, 0, False), (30, 30, False), (0, 5, False), (0, 6, True), (40, 5, False), (5, 40, True)],
    ids=["no difference", "tie", "too few", "enough", "worse", "better"],
)
def test_better_is_what_chance_does_not_explain(only_a: int, only_b: int, better: bool) -> None:
    """Model b is better only if it wins more images than it loses, with p < 0.05; a tie is not."""
    assert is_better(compared(100, only_a, only_b, 10)) is better


def test_significance_can_be_stricter() -> None:
    """With a smaller significance the same evidence may not be enough."""
    pair = compared(100, 0, 6, 10)
    assert is_better(pair, 0.05)
    assert not is_better(pair, 0.01)


def test_equal_models_are_rarely_promoted_and_better_ones_mostly() -> None:
    """Of 200 equal models 17 pass at most; of 200 better by 3 points on 2,000 images, 160."""
    generator = np.random.default_rng(0)
    equal = generator.multinomial(2000, (0.8, 0.05, 0.05, 0.1), 200)
    better = generator.multinomial(2000, (0.79, 0.06, 0.09, 0.06), 200)
    assert sum(is_better(compared(*table)) for table in equal) <= 17
    assert sum(is_better(compared(*table)) for table in better) >= 160
