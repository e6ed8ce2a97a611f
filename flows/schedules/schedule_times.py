"""When a schedule fires: a cron expression, an interval, a time zone as a person writes them.

Prefect's own parser accepts the same expressions; what it says about a wrong one names no field.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import available_timezones

from pipeline.errors import ConfigError
from pipeline.training.config import duration_seconds

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 366 * 86400.0
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(
    r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\w+))?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: dict[str, int]

    @property
    def range(self) -> str:
        """What is allowed, in words."""
        words = f"{self.low} to {self.high}"
        if self.names:
            first, *_, last = self.names
            words += f", or {first} to {last}"
        return words


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    _Field("day of the week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


@dataclass(frozen=True)
class Times:
    """When a schedule fires: a cron expression or an interval, and whose clock it means."""

    cron: str | None
    interval: dt.timedelta | None
    timezone: str

    @property
    def words(self) -> str:
        """The trigger as `schedule list` shows it."""
        return self.cron or f"every {duration_words(self.interval or dt.timedelta())}"


def times(cron: str | None, interval: str | None, timezone: str | None) -> Times:
    """Return when a schedule fires.

    Raises:
        ConfigError: if not exactly one of cron and interval is given, or one of the three is wrong.
    """
    if cron is None and interval is None:
        raise ConfigError('Say when: --cron "0 2 * * *" or --interval 2h.')
    if cron is not None and interval is not None:
        raise ConfigError("--cron and --interval exclude each other. Give one of them.")
    if interval is not None and timezone is not None:
        raise ConfigError(
            f"--timezone {timezone} belongs to --cron; an interval is the same by every clock. "
            "Leave one of the two out."
        )
    zone = checked_timezone(timezone) if timezone is not None else own_timezone()
    if cron is not None:
        return Times(checked_cron(cron), None, zone)
    return Times(None, checked_interval(str(interval)), zone)


def checked_interval(text: str) -> dt.timedelta:
    """Return an interval such as `90s`, `20m`, `2h` or `1d`.

    Raises:
        ConfigError: for anything else, and for less than ten seconds or more than a year.
    """
    try:
        days = text.endswith("d")
        seconds = 24 * duration_seconds(f"{text[:-1]}h") if days else duration_seconds(text)
    except ValueError:
        raise ConfigError(
            f"--interval is '{text}', but must be a number with a unit, such as 90s, 20m, 2h or 1d."
        ) from None
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise ConfigError(
            f"--interval is '{text}', but must be from {SHORTEST_SECONDS:.0f}s to "
            f"{LONGEST_SECONDS / 86400:.0f}d. Choose another one."
        )
    return dt.timedelta(seconds=seconds)


def duration_words(interval: dt.timedelta) -> str:
    """Return an interval as it is written on the command line: the largest unit that fits."""
    seconds = interval.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def checked_cron(text: str) -> str:
    """Return a cron expression of five fields, with single spaces between them.

    Raises:
        ConfigError: naming the field that is wrong and what it may be.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ConfigError(
            f"--cron is '{text}', which has {_counted(len(parts))}, but must have five: minute, "
            'hour, day of the month, month, day of the week. "0 2 * * *" is every night at two.'
        )
    for part, field in zip(parts, _FIELDS, strict=True):
        for item in part.split(","):
            _check_item(item, field, text)
    return " ".join(parts)


def checked_timezone(name: str) -> str:
    """Return the name of a time zone.

    Raises:
        ConfigError: if there is none of that name, with the nearest one.
    """
    known = available_timezones()
    if name in known:
        return name
    by_lower = {each.lower(): each for each in sorted(known)}
    cities = {each.lower().rpartition("/")[2]: each for each in sorted(known) if "/" in each}
    wanted = name.lower().replace(" ", "_")
    close = difflib.get_close_matches(wanted, [*by_lower, *cities], n=1)
    found = by_lower.get(close[0]) or cities[close[0]] if close else None
    hint = f"Did you mean {found}?" if found else "Give one such as Europe/Berlin or UTC."
    raise ConfigError(f"There is no time zone '{name}'. {hint}")


def own_timezone() -> str:
    """Return the name of this machine's time zone; UTC if it has none that is known."""
    known = available_timezones()
    links = (Path("/etc/localtime"), Path("/var/db/timezone/localtime"))
    wanted = [os.environ.get("TZ", "").removeprefix(":")]
    wanted += [str(link.resolve()).partition("zoneinfo/")[2] for link in links]
    with contextlib.suppress(OSError):  # not every system has it
        wanted.append(Path("/etc/timezone").read_text(encoding="utf-8").strip())
    return next((name for name in wanted if name in known), "UTC")


def prefect_schedule(chosen: Times) -> SCHEDULE_TYPES:
    """Return the schedule as Prefect keeps it; an interval begins now.

    Raises:
        ConfigError: if the time never comes, as the 31st of February.
    """
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    if chosen.interval is not None:
        return IntervalSchedule(interval=chosen.interval, timezone=chosen.timezone)
    schedule = CronSchedule(cron=str(chosen.cron), timezone=chosen.timezone)
    if not next_times(schedule):
        raise ConfigError(
            f"--cron is '{chosen.cron}', which never comes. Choose a day that its months have."
        )
    return schedule


def next_times(
    schedule: SCHEDULE_TYPES, count: int = 1, after: dt.datetime | None = None
) -> list[dt.datetime]:
    """Return when a schedule fires next, as Prefect's server computes it; none if never."""
    from prefect.server.schemas import schedules

    server_side = getattr(schedules, type(schedule).__name__)
    same = server_side.model_validate(schedule.model_dump(exclude_none=True))
    try:
        found: list[dt.datetime] = asyncio.run(same.get_dates(count, after))
    except ValueError:  # croniter's for a date that does not come within fifty years
        return []
    return found


def _check_item(item: str, field: _Field, text: str) -> None:
    """Refuse one item of a comma-separated field that is outside the field's range."""
    found = _ITEM.fullmatch(item)
    if found is None:
        raise _wrong(item, field, text)
    first = _number(found["first"], field)
    last = _number(found["last"], field) if found["last"] else first
    step = found["step"]
    if first is None or last is None or (found["first"] == "*" and found["last"]):
        raise _wrong(item, field, text)
    if last < first:
        raise ConfigError(
            f"--cron is '{text}', which is no time ({field.name} {item} runs backwards). Write it "
            "as two ranges with a comma between them."
        )
    if step is not None and not (step.isdigit() and 1 <= int(step) <= field.high):
        raise ConfigError(
            f"--cron is '{text}', which is no time (the step of {field.name} {item}: 1 to "
            f"{field.high}). Correct that field."
        )


def _number(word: str, field: _Field) -> int | None:
    """Return the number that a word of a field stands for; none if it may not stand there."""
    if word == "*":
        return field.low
    number = int(word) if word.isdigit() else field.names.get(word.lower())
    return number if number is not None and field.low <= number <= field.high else None


def _wrong(item: str, field: _Field, text: str) -> ConfigError:
    return ConfigError(
        f"--cron is '{text}', which is no time ({field.name} {item or 'nothing'}: {field.range}). "
        "Correct that field; lists 1,2, ranges 1-5 and steps */2 are possible too."
    )


def _counted(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"
