"""When a schedule fires: a cron expression, an interval, a time zone as a person writes them.

What Prefect's own parser says about a wrong expression names no field, so cronsim is asked first.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfoNotFoundError, available_timezones

import tzlocal
from cronsim import CronSim, CronSimError

from pipeline.errors import ConfigError
from pipeline.training.config import duration_seconds

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 366 * 86400.0
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31",
    "month": "1 to 12, or jan to dec",
    "day of the week": "0 to 7, or sun to sat",
}
"""The fields of a cron expression, in their order, and what may stand in each."""


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
    for position, (part, field) in enumerate(zip(parts, _FIELDS, strict=True)):
        for item in part.split(","):
            alone = ["*"] * len(_FIELDS)
            alone[position] = item or "nothing"
            try:
                CronSim(" ".join(alone), dt.datetime.now(dt.UTC))
            except CronSimError:
                raise _wrong(text, f"{field} {item or 'nothing'}: {_FIELDS[field]}") from None
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
    """Return the name of this machine's time zone; UTC if it has none that is known.

    Raises:
        ConfigError: if its settings name several.
    """
    try:
        name = tzlocal.get_localzone_name()
    except ZoneInfoNotFoundError as error:
        raise ConfigError(
            f"This machine's time zone is not clear ({error.args[0]}). Set TZ, such as "
            "TZ=Europe/Berlin."
        ) from error
    return name if name in available_timezones() else "UTC"


def prefect_schedule(chosen: Times) -> SCHEDULE_TYPES:
    """Return the schedule as Prefect keeps it; an interval begins now.

    Raises:
        ConfigError: if the time never comes, as the 31st of February.
    """
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    if chosen.interval is not None:
        return IntervalSchedule(interval=chosen.interval, timezone=chosen.timezone)
    try:
        schedule = CronSchedule(cron=str(chosen.cron), timezone=chosen.timezone)
    except ValueError as error:  # what cronsim takes, and Prefect does not, such as LW
        raise _wrong(str(chosen.cron), "Prefect does not take it") from error
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


def _wrong(text: str, fault: str) -> ConfigError:
    return ConfigError(
        f"--cron is '{text}', which is no time ({fault}). Correct that field; lists 1,2, ranges "
        "from low to high 1-5 and steps */2 are possible too."
    )


def _counted(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"
