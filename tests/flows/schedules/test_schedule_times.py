"""What people may write for the time of a schedule, and how everything else is refused."""

from __future__ import annotations

import datetime as dt

import pytest

from patchline.flows.schedules import schedule_times
from patchline.pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 25 * * *", "hour 25: 0 to 23"),
        ("0 0 * * funday", "day of the week funday"),
        ("*/0 * * * *", "minute */0: 0 to 59"),
        ("0 22-3 * * *", "hour 22-3: 0 to 23"),
        ("0 2 * *", "has 4 fields"),
        ("² 2 * * *", "minute ²"),
    ],
)
def test_a_wrong_cron_expression_is_refused_with_the_field_and_its_range(
    cron: str, said: str
) -> None:
    """The sentence holds what was given, the field, what may stand there, and what to do."""
    with pytest.raises(ConfigError) as refused:
        schedule_times.check_cron(cron)
    assert said in str(refused.value)
    assert f"--cron is '{cron}'" in str(refused.value)


def test_names_of_months_and_weekdays_are_possible() -> None:
    """As in every cron: in either case, in lists and ranges."""
    assert schedule_times.check_cron("0 9-17/2 * JAN,mar mon-fri") == "0 9-17/2 * JAN,mar mon-fri"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1d", 86400), ("1.5h", 5400)]
)
def test_an_interval_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes, hours and days; what it was is written back in the largest unit."""
    interval = schedule_times.check_interval(text)
    assert interval == dt.timedelta(seconds=seconds)
    again = schedule_times.check_interval(schedule_times.duration_words(interval))
    assert again == interval


@pytest.mark.parametrize("text", ["9s", "400d", "2 h", "d", "-3m", ""])
def test_an_interval_that_is_none_or_out_of_range_is_refused(text: str) -> None:
    """The sentence says what an interval looks like, or how short and long it may be."""
    with pytest.raises(ConfigError, match=r"such as 90s|from 10s to 366d"):
        schedule_times.check_interval(text)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest(name: str, meant: str) -> None:
    """A city alone, another case or a slip of the finger lead to the zone's name."""
    with pytest.raises(ConfigError, match=f"Did you mean {meant}\\?"):
        schedule_times.check_timezone(name)


@pytest.mark.parametrize(
    ("cron", "zone", "is_refused"),
    [
        ("0 0 * * *", "America/Santiago", True),
        ("30 0 * * sun", "America/Santiago", True),
        ("0 1 * * *", "America/Santiago", False),
        ("0 * * * *", "America/Santiago", False),
        ("0 2 * * *", "Europe/Berlin", False),
        ("0 0 * * *", "UTC", False),
    ],
)
def test_a_time_that_is_skipped_after_midnight_is_refused(
    cron: str, zone: str, *, is_refused: bool
) -> None:
    """Prefect would run it an hour earlier, on the day before."""
    if not is_refused:
        assert schedule_times.times(cron, None, zone).cron == cron
        return
    with pytest.raises(ConfigError, match=r"from 00:00 to 01:00\. Choose a time from 01:00 on"):
        schedule_times.times(cron, None, zone)
