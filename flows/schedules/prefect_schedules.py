"""The times of a schedule as a Prefect schedule, and its next runs as the server computes them."""

from __future__ import annotations

import asyncio
import datetime as dt

from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule

from patchline.flows.schedules.schedule_times import Times, invalid_cron
from patchline.pipeline.errors import ConfigError


def prefect_schedule(times: Times) -> SCHEDULE_TYPES:
    """Return the schedule in Prefect's form; an interval starts now.

    Raises:
        ConfigError: if the time never comes, such as February 31.
    """
    if times.interval is not None:
        return IntervalSchedule(interval=times.interval, timezone=times.timezone)
    try:
        schedule = CronSchedule(cron=str(times.cron), timezone=times.timezone)
    except ValueError as error:  # valid for cronsim but not for Prefect, such as LW
        raise invalid_cron(str(times.cron), "Prefect does not support it") from error
    if not next_times(schedule):
        raise ConfigError(
            f"--cron is '{times.cron}', which never occurs. Choose a day that exists in its months."
        )
    return schedule


def next_times(
    schedule: SCHEDULE_TYPES, count: int = 1, after: dt.datetime | None = None
) -> list[dt.datetime]:
    """Return the next times that a schedule runs, as Prefect's server computes them."""
    from prefect.server.schemas import schedules as server_schedules  # takes seconds

    server_side = getattr(server_schedules, type(schedule).__name__)
    same = server_side.model_validate(schedule.model_dump(exclude_none=True))
    try:
        times: list[dt.datetime] = asyncio.run(same.get_dates(count, after))
    except ValueError:  # croniter finds no date within fifty years
        return []
    return times
