"""The learning rate rises linearly, then follows the chosen schedule."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.schedule import SCHEDULES, learning_rate_factor

warmups = st.floats(0, 0.99)
progresses = st.floats(0, 1)


@given(progress=progresses, warmup=warmups)
def test_rises_linearly_and_falls_as_a_cosine(progress: float, warmup: float) -> None:
    """The factor is the share of the warm-up that is done, and 1 where that ends."""
    way = (progress - warmup) / (1 - warmup)
    expected = (1 + math.cos(math.pi * way)) / 2 if way >= 0 else progress / warmup
    assert learning_rate_factor(progress, warmup) == pytest.approx(expected, abs=1e-9)


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
