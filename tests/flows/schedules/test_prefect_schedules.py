"""Prefect takes the times that people write, also when the clocks change."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.client.schemas.schedules import CronSchedule

from patchline.flows.schedules import schedule_times
from patchline.flows.schedules.schedule_listing import next_times, prefect_schedule
from patchline.pipeline.errors import ConfigError

_BERLIN = ZoneInfo("Europe/Berlin")
_NUMBERS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers).map(lambda ends: f"{min(ends)}-{max(ends)}")
    items = st.one_of(
        numbers.map(str), ranges, st.builds("{}/{}".format, ranges, st.integers(1, high))
    )
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map("*/{}".format),
        st.lists(items, min_size=1).map(",".join),
    )


@settings(max_examples=30)
@given(st.tuples(*(_field(low, high) for low, high in _NUMBERS)))
def test_prefect_accepts_every_expression_that_is_accepted_here(fields: tuple[str, ...]) -> None:
    """Numbers, ranges, lists and steps within the ranges pass here and in Prefect."""
    text = schedule_times.check_cron("  ".join(fields))
    assert CronSchedule(cron=text, timezone="UTC").cron == " ".join(fields)


@pytest.mark.parametrize(
    ("cron", "words"),
    [("0 0 LW * *", "LW.*Prefect does not support it"), ("0 0 31 2 *", "never occurs")],
)
def test_what_prefect_does_not_take_is_refused_before_the_server_is_asked(
    cron: str, words: str
) -> None:
    """The last weekday of the month is an expression for cronsim; February 31 is not a date."""
    with pytest.raises(ConfigError, match=words):
        prefect_schedule(schedule_times.times(cron, None, "UTC"))


@pytest.mark.parametrize("change", [dt.date(2026, 3, 29), dt.date(2026, 10, 25)])
@pytest.mark.parametrize("hour", [2, 9])
def test_a_daily_schedule_fires_once_a_day_when_the_clocks_change(
    hour: int, change: dt.date
) -> None:
    """Neither twice in the hour that comes twice, nor not at all in the hour that is left out.

    Nine in the morning stays nine in the morning, whatever it is in UTC.
    """
    before = dt.datetime.combine(change - dt.timedelta(days=2), dt.time(12), _BERLIN)
    schedule = prefect_schedule(schedule_times.times(f"30 {hour} * * *", None, "Europe/Berlin"))
    fired = [moment.astimezone(_BERLIN) for moment in next_times(schedule, 5, before)]
    assert [each.date() for each in fired] == [
        change + dt.timedelta(days=offset) for offset in range(-1, 4)
    ]
    assert hour == 2 or {each.hour for each in fired} == {9}


@pytest.mark.parametrize("change", [dt.date(2026, 10, 24), dt.date(2027, 3, 27)])
def test_an_interval_stays_even_when_the_clocks_change(
    monkeypatch: pytest.MonkeyPatch, change: dt.date
) -> None:
    """A day means 24 hours, also where the day of the change has 23 or 25 of them."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    start = dt.datetime.combine(change, dt.time(22), _BERLIN)
    times = prefect_schedule(schedule_times.times(None, "1d", None))
    schedule = times.model_copy(update={"anchor_date": start})
    moments = [moment.timestamp() for moment in next_times(schedule, 3, start)]
    assert moments == [start.timestamp() + 86400 * turn for turn in range(3)]
