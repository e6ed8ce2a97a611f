"""Tests of `patchline.plugins.tools.monitor.level_spending`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.errors import ConfigError
from patchline.plugins.tools.monitor.level_spending import Period


@given(st.floats(0.001, 0.5), st.integers(1, 2000), st.integers(1, 5000))
def test_a_period_never_spends_more_than_its_rate(rate: float, checks: int, check: int) -> None:
    """Whatever the rate, and also after the period is over and the next has begun."""
    period = Period.checked(rate, checks)
    assert period.level <= period.spent(check) <= rate * (1 + 1e-9)
    in_period = range(check - period.place(check) + 1, check + 1)
    assert period.level * len(in_period) <= period.spent(check)
    assert period.level * checks == pytest.approx(rate / 2)  # the rest is for the reference


def test_nothing_is_spent_before_the_first_check() -> None:
    """All of the rate is left."""
    assert Period().spent(0) == 0


@pytest.mark.parametrize(
    ("rate", "checks", "flag"),
    [(0, 10, "--false-alarms"), (1, 10, "--false-alarms"), (0.05, 0, "--checks")],
)
def test_an_impossible_period_is_refused(rate: float, checks: int, flag: str) -> None:
    """With the flag and the value."""
    with pytest.raises(ConfigError, match=flag):
        Period.checked(rate, checks)
