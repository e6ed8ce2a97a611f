"""Prefect takes the times that people write, also when the clocks change."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.schedules import CronSchedule

from patchline.flows.schedules.prefect_schedules import next_times, prefect_schedule
from patchline.pipeline.automation import schedule_times
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


@given(st.tuples(*(_field(low, high) for low, high in _NUMBERS)))
def test_prefect_accepts_every_expression_that_is_accepted_here(fields: tuple[str, ...]) -> None:
    """Numbers, ranges, lists and steps within the ranges pass here and in Prefect."""
    text = schedule_times.checked_cron("  ".join(fields))
    assert CronSchedule(cron=text, timezone="UTC").cron == " ".join(fields)


def test_what_prefect_does_not_take_is_refused_before_the_server_is_asked() -> None:
    """The last weekday of the month is an expression for cronsim and none for Prefect."""
    with pytest.raises(ConfigError, match=r"LW.*Prefect does not support it"):
        prefect_schedule(schedule_times.times("0 0 LW * *", None, "UTC"))


def test_a_day_that_never_occurs_is_refused() -> None:
    """February 31 is a valid expression but not a date; February 29 exists in some years."""
    with pytest.raises(ConfigError, match="never occurs"):
        prefect_schedule(schedule_times.times("0 0 31 2 *", None, "UTC"))
    leap = prefect_schedule(schedule_times.times("0 0 29 2 *", None, "UTC"))
    assert next_times(leap)[0].day == 29


def _fires(cron: str, after: dt.datetime, count: int) -> list[dt.datetime]:
    schedule = prefect_schedule(schedule_times.times(cron, None, "Europe/Berlin"))
    return next_times(schedule, count, after)


@pytest.mark.parametrize("change", [dt.date(2026, 3, 29), dt.date(2026, 10, 25)])
@pytest.mark.parametrize("cron", ["0 2 * * *", "30 2 * * *", "0 9 * * *"])
def test_a_daily_schedule_fires_once_a_day_when_the_clocks_change(
    cron: str, change: dt.date
) -> None:
    """Neither twice in the hour that comes twice, nor not at all in the hour that is left out."""
    before = dt.datetime.combine(change - dt.timedelta(days=2), dt.time(12), _BERLIN)
    fired = _fires(cron, before, 5)
    days = [moment.astimezone(_BERLIN).date() for moment in fired]
    assert days == [change + dt.timedelta(days=offset) for offset in range(-1, 4)]


def test_a_daily_schedule_keeps_the_hour_of_the_clock_on_the_wall() -> None:
    """Nine in the morning stays nine in the morning, whatever it is in UTC."""
    fired = _fires("0 9 * * *", dt.datetime(2026, 3, 27, 12, tzinfo=_BERLIN), 4)
    assert {moment.astimezone(_BERLIN).hour for moment in fired} == {9}
    assert [moment.astimezone(dt.UTC).hour for moment in fired] == [8, 7, 7, 7]


@pytest.mark.parametrize(("interval", "seconds"), [("2h", 7200), ("1d", 86400), ("7d", 604800)])
@pytest.mark.parametrize("change", [dt.date(2026, 10, 24), dt.date(2027, 3, 27)])
def test_an_interval_stays_even_when_the_clocks_change(
    monkeypatch: pytest.MonkeyPatch, change: dt.date, interval: str, seconds: int
) -> None:
    """A day means 24 hours, also where the day of the change has 23 or 25 of them."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    start = dt.datetime.combine(change, dt.time(22), _BERLIN)
    schedule = prefect_schedule(schedule_times.times(None, interval, None)).model_copy(
        update={"anchor_date": start}
    )
    fired = next_times(schedule, 6, start)
    moments = [moment.timestamp() for moment in fired]
    assert moments == [start.timestamp() + seconds * turn for turn in range(6)]
