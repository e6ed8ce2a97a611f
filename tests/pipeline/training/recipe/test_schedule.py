"""The learning rate rises linearly, then follows the chosen schedule."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.schedule import SCHEDULES, learning_rate_factor

warmups = st.floats(0, 0.99)
progresses = st.floats(0, 1)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_reaches_the_peak_after_the_warm_up_and_ends_at_zero(warmup: float) -> None:
    """The factor is 1 where the warm-up ends, a half midway down, and 0 at the end."""
    assert learning_rate_factor(warmup, warmup) == 1.0
    assert learning_rate_factor((warmup + 1) / 2, warmup) == pytest.approx(0.5)
    assert learning_rate_factor(1.0, warmup) == pytest.approx(0.0)


def test_rises_linearly() -> None:
    """In the warm-up the factor is the share of the warm-up that is done."""
    factors = [learning_rate_factor(progress, 0.2) for progress in (0.0, 0.05, 0.1, 0.15)]
    assert factors == pytest.approx([0.0, 0.25, 0.5, 0.75])


def test_falls_as_a_cosine() -> None:
    """After the warm-up the factor is half of one plus the cosine of the way that is done."""
    for way in (0.1, 0.3, 0.9):
        expected = (1 + math.cos(math.pi * way)) / 2
        assert learning_rate_factor(0.2 + 0.8 * way, 0.2) == pytest.approx(expected)


@given(progress=progresses, warmup=warmups)
def test_stays_between_zero_and_the_peak(progress: float, warmup: float) -> None:
    """The factor never leaves the range from 0 to 1."""
    assert 0.0 <= learning_rate_factor(progress, warmup) <= 1.0


@given(one=progresses, other=progresses, warmup=warmups)
def test_has_one_peak(one: float, other: float, warmup: float) -> None:
    """It never falls in the warm-up, and never rises after it."""
    low, high = sorted((one, other))
    before, after = learning_rate_factor(low, warmup), learning_rate_factor(high, warmup)
    if high < warmup:
        assert before <= after
    elif low >= warmup:
        assert before >= after


@given(warmup=warmups)
def test_does_not_jump(warmup: float) -> None:
    """Between neighbouring steps of a long training the factor changes a little only."""
    steps = 2000
    factors = [learning_rate_factor(step / steps, warmup) for step in range(steps + 1)]
    largest = max(abs(a - b) for a, b in itertools.pairwise(factors))
    shorter_side = min(1 - warmup, warmup or 1.0)
    assert largest <= min(1.0, 2 / (steps * shorter_side)) + 1e-9


def test_every_accepted_name_has_a_schedule() -> None:
    """The names that the config accepts are those that exist, no more and no fewer."""
    assert set(get_args(OptimizerConfig.model_fields["schedule"].annotation)) == set(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("wsd", [0.5, 1.0, 1.0, 1.0, 1.0, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_schedule_decides_what_follows_the_warm_up(
    schedule: str, expected: list[float]
) -> None:
    """At a tenth, the end of the warm-up, each quarter of the rest, and the end."""
    progress = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    factors = [learning_rate_factor(each, 0.2, schedule, 0.2) for each in progress]
    assert factors == pytest.approx(expected)


def test_wsd_falls_in_the_last_part_only() -> None:
    """Halfway through the decay the factor is a half, whatever the warm-up."""
    for warmup in (0.0, 0.1, 0.3):
        assert learning_rate_factor(0.8, warmup, "wsd", 0.4) == pytest.approx(0.5)
        assert learning_rate_factor(0.59, warmup, "wsd", 0.4) == 1.0
