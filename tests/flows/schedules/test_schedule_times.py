"""When a schedule fires: what a person may write, what is wrong with the rest, and the clock."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.schedules import CronSchedule

from flows.schedules import schedule_times
from pipeline.errors import ConfigError

_BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 25 * * *", "hour 25: 0 to 23"),
        ("60 * * * *", "minute 60: 0 to 59"),
        ("0 0 0 * *", "day of the month 0: 1 to 31"),
        ("0 0 * 13 *", "month 13: 1 to 12, or jan to dec"),
        ("0 0 * * 8", "day of the week 8: 0 to 7, or sun to sat"),
        ("0 0 * * funday", "day of the week funday"),
        ("*/0 * * * *", "minute */0: 0 to 59"),
        ("0 0-30 * * *", "hour 0-30: 0 to 23"),
        ("0 22-3 * * *", "hour 22-3: 0 to 23"),
        ("1,,2 * * * *", "minute nothing: 0 to 59"),
        ("-1 * * * *", "minute -1"),
        ("1.5 * * * *", "minute 1.5"),
        ("0 2 * *", "has 4 fields"),
        ("0 0 2 * * *", "has 6 fields"),
        ("@daily", "has 1 field,"),
        ("", "has 0 fields"),
        ("h 2 * * *", "minute h"),
        ("² 2 * * *", "minute ²"),
    ],
)
def test_a_wrong_cron_expression_is_refused_with_the_field_and_its_range(
    cron: str, said: str
) -> None:
    """The sentence holds what was given, the field, what may stand there, and what to do."""
    with pytest.raises(ConfigError) as refused:
        schedule_times.checked_cron(cron)
    assert said in str(refused.value)
    assert f"--cron is '{cron}'" in str(refused.value)


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
def test_every_expression_that_is_accepted_prefect_accepts_too(fields: tuple[str, ...]) -> None:
    """Numbers, ranges, lists and steps within the ranges pass here and in Prefect."""
    text = schedule_times.checked_cron("  ".join(fields))
    assert CronSchedule(cron=text, timezone="UTC").cron == " ".join(fields)


def test_names_of_months_and_weekdays_are_possible() -> None:
    """As in every cron: in either case, in lists and ranges."""
    assert schedule_times.checked_cron("0 9-17/2 * JAN,mar mon-fri") == "0 9-17/2 * JAN,mar mon-fri"


def test_what_prefect_does_not_take_is_refused_before_the_server_is_asked() -> None:
    """The last weekday of the month is an expression for cronsim and none for Prefect."""
    with pytest.raises(ConfigError, match=r"LW.*Prefect does not take it"):
        schedule_times.prefect_schedule(schedule_times.times("0 0 LW * *", None, "UTC"))


def test_a_day_that_never_comes_is_refused() -> None:
    """The 31st of February is a correct expression and no date; the 29th comes in some years."""
    with pytest.raises(ConfigError, match="never comes"):
        schedule_times.prefect_schedule(schedule_times.times("0 0 31 2 *", None, "UTC"))
    leap = schedule_times.prefect_schedule(schedule_times.times("0 0 29 2 *", None, "UTC"))
    assert schedule_times.next_times(leap)[0].day == 29


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200), ("1d", 86400), ("1.5h", 5400)]
)
def test_an_interval_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes, hours and days; what it was is written back in the largest unit."""
    interval = schedule_times.checked_interval(text)
    assert interval == dt.timedelta(seconds=seconds)
    again = schedule_times.checked_interval(schedule_times.duration_words(interval))
    assert again == interval


@pytest.mark.parametrize("text", ["9s", "0m", "400d", "2 h", "d", "-3m", "5y", "", "1e9s", "nan"])
def test_an_interval_that_is_none_or_out_of_range_is_refused(text: str) -> None:
    """The sentence says what an interval looks like, or how short and long it may be."""
    with pytest.raises(ConfigError, match=r"such as 90s|from 10s to 366d"):
        schedule_times.checked_interval(text)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Tokio", "Asia/Tokyo"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest(name: str, meant: str) -> None:
    """A city alone, another case or a slip of the finger lead to the zone's name."""
    with pytest.raises(ConfigError, match=f"Did you mean {meant}\\?"):
        schedule_times.checked_timezone(name)


def test_the_machines_own_zone_is_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --timezone the clock of this machine counts; TZ overrides it."""
    monkeypatch.setattr("tzlocal.unix._cache_tz_name", None)  # asked once in a process
    monkeypatch.delenv("TZ", raising=False)
    assert schedule_times.own_timezone() in available_timezones()
    monkeypatch.setattr("tzlocal.unix._cache_tz_name", None)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert schedule_times.own_timezone() == "Asia/Tokyo"
    monkeypatch.setattr("tzlocal.unix._cache_tz_name", None)
    monkeypatch.setenv("TZ", "nonsense")
    assert schedule_times.own_timezone() in available_timezones()


@pytest.mark.parametrize(
    ("cron", "interval"), [(None, None), ("0 2 * * *", "2h")], ids=["neither", "both"]
)
def test_either_a_cron_or_an_interval_is_needed(cron: str | None, interval: str | None) -> None:
    """Neither and both are refused in a sentence that names the two options."""
    with pytest.raises(ConfigError, match=r"--cron.*--interval"):
        schedule_times.times(cron, interval, None)


def _fires(cron: str, after: dt.datetime, count: int) -> list[dt.datetime]:
    schedule = schedule_times.prefect_schedule(schedule_times.times(cron, None, "Europe/Berlin"))
    return schedule_times.next_times(schedule, count, after)


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


def test_an_interval_goes_on_evenly_when_the_clocks_change() -> None:
    """Every two hours means two hours, also in the night of the change."""
    start = dt.datetime(2026, 10, 24, 22, tzinfo=_BERLIN)
    schedule = schedule_times.prefect_schedule(schedule_times.times(None, "2h", None)).model_copy(
        update={"anchor_date": start, "timezone": "Europe/Berlin"}
    )
    fired = schedule_times.next_times(schedule, 6, start)
    seconds = [moment.timestamp() for moment in fired]
    assert seconds == [start.timestamp() + 7200 * turn for turn in range(6)]
