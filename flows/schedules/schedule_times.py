"""When a schedule runs: a cron expression, an interval and a time zone, as people write them.

Prefect's own error for a wrong cron expression names no field, so cronsim checks each field first.
"""

from __future__ import annotations

import datetime as dt
import difflib
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import tzlocal
from cronsim import CronSim, CronSimError

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import duration_seconds

SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 366 * 86400.0
_DAYS_AHEAD = 366
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31",
    "month": "1 to 12, or jan to dec",
    "day of the week": "0 to 7, or sun to sat",
}
"""The fields of a cron expression, in order, with the values that each accepts."""


@dataclass(frozen=True)
class Times:
    """When a schedule runs: a cron expression or an interval, and a time zone."""

    cron: str | None
    interval: dt.timedelta | None
    timezone: str
    """The time zone of the cron expression; UTC for an interval, whose days have 24 hours: in
    another zone, a scheduler counts its days on the calendar, where one has 23 hours and one 25."""

    @property
    def words(self) -> str:
        """The trigger as `schedule list` shows it."""
        return self.cron or f"every {duration_words(self.interval or dt.timedelta())}"

    @property
    def words_with_zone(self) -> str:
        """The trigger, with the time zone of a cron expression."""
        return f"{self.words}, {self.timezone}" if self.cron else self.words


def times(cron: str | None, interval: str | None, timezone: str | None) -> Times:
    """Return the checked times of a schedule.

    Raises:
        ConfigError: unless exactly one of cron and interval is given, and every value is valid.
    """
    if cron is None and interval is None:
        raise ConfigError('Set when it runs: --cron "0 2 * * *" or --interval 2h.')
    if cron is not None and interval is not None:
        raise ConfigError("--cron and --interval are mutually exclusive. Give only one.")
    if interval is not None and timezone is not None:
        raise ConfigError(
            f"--timezone {timezone} applies to --cron only: intervals do not depend on time zones. "
            "Remove one of the two."
        )
    if cron is None:
        return Times(None, check_interval(str(interval)), "UTC")
    zone = check_timezone(timezone) if timezone is not None else own_timezone()
    expression = check_cron(cron)
    _check_midnight(expression, zone, dt.datetime.now(ZoneInfo(zone)).date())
    return Times(expression, None, zone)


def check_interval(text: str) -> dt.timedelta:
    """Return an interval such as `90s`, `20m`, `2h` or `1d`.

    Raises:
        ConfigError: for anything else, and outside 10 seconds to 366 days.
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
            f"{LONGEST_SECONDS / 86400:.0f}d. Choose an interval in that range."
        )
    return dt.timedelta(seconds=seconds)


def duration_words(interval: dt.timedelta) -> str:
    """Return an interval in the largest unit that fits: `20m`, `2h`, `1d`."""
    seconds = interval.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def check_cron(text: str) -> str:
    """Return a five-field cron expression with single spaces.

    Raises:
        ConfigError: naming the invalid field and what it accepts.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ConfigError(
            f"--cron is '{text}', which has {_format_count(len(parts))}, but must have five: "
            "minute, "
            'hour, day of the month, month, day of the week. "0 2 * * *" is every night at 02:00.'
        )
    for position, (part, field) in enumerate(zip(parts, _FIELDS, strict=True)):
        for item in part.split(","):
            alone = ["*"] * len(_FIELDS)
            alone[position] = item or "nothing"
            try:
                CronSim(" ".join(alone), dt.datetime.now(dt.UTC))
            except CronSimError:
                raise invalid_cron(text, f"{field} {item or 'nothing'}: {_FIELDS[field]}") from None
    return " ".join(parts)


def _check_midnight(cron: str, zone: str, today: dt.date) -> None:
    """Refuse times that a zone skips after a midnight: Prefect would run them the day before.

    A time that is skipped later in a day runs an hour earlier on the same day.
    """
    if "*" in cron.split()[1]:  # runs at other hours of that day, too
        return
    for day in range(_DAYS_AHEAD):
        midnight = dt.datetime.combine(today + dt.timedelta(day), dt.time())
        there = midnight.replace(tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)
        end = there.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if end > midnight and next(CronSim(cron, midnight - dt.timedelta(seconds=1))) < end:
            raise ConfigError(
                f"--cron is '{cron}', a time that does not exist on {midnight:%Y-%m-%d} in {zone}, "
                f"where the clocks go from 00:00 to {end:%H:%M}. Choose a time from {end:%H:%M} on."
            )


def check_timezone(name: str) -> str:
    """Return the name of a time zone if it exists.

    Raises:
        ConfigError: if it does not, naming the closest match.
    """
    zones = available_timezones()
    if name in zones:
        return name
    by_lower = {each.lower(): each for each in sorted(zones)}
    cities = {each.lower().rpartition("/")[2]: each for each in sorted(zones) if "/" in each}
    plain = name.lower().replace(" ", "_")
    close = difflib.get_close_matches(plain, [*by_lower, *cities], n=1)
    closest = by_lower.get(close[0]) or cities[close[0]] if close else None
    hint = f"Did you mean {closest}?" if closest else "Use a name such as Europe/Berlin or UTC."
    raise ConfigError(f"There is no time zone '{name}'. {hint}")


def own_timezone() -> str:
    """Return the name of this machine's time zone; UTC if that is unknown.

    Raises:
        ConfigError: if its settings contradict each other.
    """
    try:
        name = tzlocal.get_localzone_name()
    except ZoneInfoNotFoundError as error:
        raise ConfigError(
            f"This machine's time zone is ambiguous ({error.args[0]}). Set the variable TZ, for "
            "example TZ=Europe/Berlin."
        ) from error
    return name if name in available_timezones() else "UTC"


def invalid_cron(text: str, reason: str) -> ConfigError:
    """Return the error for a cron expression that cannot be used."""
    return ConfigError(
        f"--cron is '{text}', which is not a valid cron expression ({reason}). Correct that field; "
        "lists (1,2), ascending ranges (1-5) and steps (*/2) are allowed too."
    )


def _format_count(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"
