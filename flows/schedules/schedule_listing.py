"""Prefect deployments as schedule summaries, and the description on a deployment's page."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule

from patchline.flows.schedules import deployments, scheduled_work
from patchline.flows.schedules.schedule_times import Times, duration_words, invalid_cron
from patchline.flows.schedules.scheduled_work import (
    LastRun,
    ScheduledWork,
    ScheduleSummary,
    work_words,
)
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.tools import tools
from patchline.plugin_api import ToolWork


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


Labels = Mapping[str, Any]
_MAX_MESSAGE_LENGTH = 300


def summary(deployment: DeploymentResponse) -> ScheduleSummary:
    """Return one deployment as it is shown.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    schedule = deployment.schedules[0].schedule if deployment.schedules else None
    paused = deployments.is_paused(deployment)
    coming = next_times(schedule) if schedule and not paused else []
    labels = deployment.labels
    kind, what = _kind_and_words(deployment)
    config_file = labels.get(scheduled_work.CONFIG_FILE)
    config_state = scheduled_work.config_state(labels)
    return ScheduleSummary(
        name=deployments.name_of(deployment),
        kind=kind,
        what=what,
        trigger=_trigger(schedule, labels),
        timezone=schedule.timezone if isinstance(schedule, CronSchedule) else None,
        paused=paused,
        next=coming[0].astimezone().isoformat(timespec="seconds") if coming else None,
        last=_last(deployments.last_run(deployment.id)),
        config_file=None if config_file is None else str(config_file),
        config_changed=None if config_state is None else config_state != "same",
        config_missing=config_state == "gone",
    )


def description(work: ScheduledWork, times: Times | None, labels: Labels) -> str:
    """Return the text on the deployment's page in the Prefect UI, in markdown."""
    if work.of_tool is not None:
        what = _tool_words(work.of_tool[1], work.parameters)
    else:
        what = work_words(work.kind, work.parameters)
    when = _event_words(labels) if times is None else times.words_with_zone
    lines = [f"{what[0].upper()}{what[1:]}: {when}."]
    if file := work.labels.get(scheduled_work.CONFIG_FILE):
        now = dt.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        lines.append(
            f"Uses the settings of `{file}` as of {now}. Run `patchline schedule create` with the "
            "same name to update them."
        )
    lines.append("`patchline schedule list` shows it in the terminal.")
    return "\n\n".join(lines)


def _kind_and_words(deployment: DeploymentResponse) -> tuple[str, str]:
    """Return the kind of work that a deployment does, and what it does in words."""
    labels, parameters = deployment.labels, deployment.parameters
    watched, flow = labels.get(deployments.WATCH_FOLDER), deployment.entrypoint or ""
    for _, work in tools().work():
        paths = (work.flow, *work.formerly)
        if flow in {path.replace(":", ".") for path in paths}:
            return work.kind, _tool_words(work, parameters)
    is_own = flow.startswith("patchline.flows.") and {"config", "out"} & parameters.keys()
    if not is_own:
        return "unknown", f"runs {flow}, whose tool is not installed here"
    if labels[deployments.KIND] == "watch":
        kind = "watch"
    else:
        kind = "predict" if "out" in parameters else "train"
    return kind, work_words(kind, parameters, watched)


def _tool_words(work: ToolWork, parameters: Mapping[str, Any]) -> str:
    return work.description.format_map(defaultdict(lambda: "?", parameters))


def _event_words(labels: Labels) -> str:
    """Return which event starts a schedule; empty if none does."""
    for key, model in labels.items():
        if key.startswith(deployments.ON_EVENT):
            words = key.removeprefix("patchline.").replace("_", " ")
            return f"{words} of {model}"
    return ""


def _trigger(schedule: SCHEDULE_TYPES | None, labels: Labels) -> str:
    if event := _event_words(labels):
        return event
    if isinstance(schedule, CronSchedule):
        return schedule.cron
    if isinstance(schedule, IntervalSchedule):
        return f"every {duration_words(schedule.interval)}"
    return "on new images" if schedule is None else "set in Prefect"


def _last(run: FlowRun | None) -> LastRun | None:
    if run is None:
        return None
    at = run.end_time or run.start_time or run.expected_start_time
    state = run.state
    failed = state is not None and (state.is_failed() or state.is_crashed() or state.is_cancelled())
    message = " ".join(str(state.message or "").split()) if state and failed else ""
    return LastRun(
        state=run.state_name or "Unknown",
        at=at.astimezone().isoformat(timespec="seconds") if at else None,
        flow_run_id=str(run.id),
        message=message[:_MAX_MESSAGE_LENGTH],
    )
