"""McNemar's exact test and the interval of the difference of two classifiers."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.evaluation.metrics.paired_test import (
    PairedDifference,
    compute_paired_difference,
    is_better,
)

tables = st.tuples(*(st.integers(0, 40),) * 4).filter(lambda table: sum(table) > 0)


def compared(both: int, only_a: int, only_b: int, neither: int) -> PairedDifference:
    """Return the comparison of two models with these counts of images."""
    counts = (both, only_a, only_b, neither)
    a = np.repeat([True, True, False, False], counts)
    return compute_paired_difference(a, np.repeat([True, False, True, False], counts))


@given(tables)
def test_p_value_is_the_sum_of_the_binomial_tail(table: tuple[int, int, int, int]) -> None:
    """The p-value is twice the probability of so few, or fewer, of the rarer kind, 1 at most."""
    _, only_a, only_b, _ = table
    discordant = only_a + only_b
    tail = sum(comb(discordant, k) for k in range(min(only_a, only_b) + 1)) / 2**discordant
    pair = compared(*table)
    assert pair.p_value == pytest.approx(min(1.0, 2 * tail))
    assert (pair.only_a_right, pair.only_b_right) == (only_a, only_b)
    assert pair.difference.value == pytest.approx((only_b - only_a) / sum(table))
    assert pair.difference.n == sum(table)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [((1, 7, 1, 12), -0.517, -0.026), ((36, 12, 2, 0), -0.345, -0.061)],
    ids=["Bentur et al. 2009", "Tango 1998"],
)
def test_interval_is_tangos(table: tuple[int, int, int, int], low: float, high: float) -> None:
    """As published of these tables."""
    difference = compared(*table).difference
    assert (difference.low, difference.high) == pytest.approx((low, high), abs=5e-4)


@given(tables)
def test_exchanging_the_models_mirrors_everything(table: tuple[int, int, int, int]) -> None:
    """Exchanged, the models have the difference with the other sign, and the same p-value."""
    both, only_a, only_b, neither = table
    one, other = compared(*table), compared(both, only_b, only_a, neither)
    assert one.p_value == other.p_value
    assert -1 <= one.difference.low <= one.difference.value <= one.difference.high <= 1
    assert one.difference.low < one.difference.high
    assert one.difference.low == pytest.approx(-other.difference.high, abs=1e-6)
    assert one.difference.high == pytest.approx(-other.difference.low, abs=1e-6)


def test_no_images_say_nothing() -> None:
    """Without images the difference may be anything, and nothing is better."""
    pair = compute_paired_difference(np.empty(0, bool), np.empty(0, bool))
    assert (pair.difference.low, pair.difference.value, pair.difference.high) == (-1, 0, 1)
    assert (pair.p_value, pair.difference.n) == (1.0, 0)
    assert not is_better(pair)


@pytest.mark.parametrize(
    ("only_a", "only_b", "better"),
    [(0, 0, False), (30, 30, False), (0, 5, False), (0, 6, True), (40, 5, False)],
    ids=["no difference", "tie", "too few", "enough", "worse"],
)
def test_better_is_what_chance_does_not_explain(only_a: int, only_b: int, better: bool) -> None:
    """Model b is better only if it wins more images than it loses, with p < 0.05; a tie is not."""
    pair = compared(100, only_a, only_b, 10)
    assert is_better(pair) is better
    assert not is_better(pair, pair.p_value)
