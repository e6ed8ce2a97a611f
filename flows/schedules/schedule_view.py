"""How a schedule is shown: to a person, as JSON, and on its page in Prefect."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, Literal

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule

from flows.schedules import deployments, schedule_plan, schedule_times
from flows.schedules.schedule_plan import Plan
from flows.schedules.schedule_times import Times
from pipeline.section import Section

_LONGEST_MESSAGE = 300


class LastRun(Section):
    """What became of the newest run."""

    state: str
    """Prefect's word: Completed, Failed, Running, ..."""
    at: str | None
    """When it came to that; ISO 8601."""
    flow_run_id: str
    message: str
    """Why, if it did not complete."""


class ScheduleView(Section):
    """One schedule or watch."""

    name: str
    kind: Literal["train", "predict", "watch"]
    what: str
    """What it does, for a person."""
    trigger: str
    """A cron expression, an interval such as `every 20m`, or what else starts it."""
    timezone: str | None
    paused: bool
    next: str | None
    """When it fires next, by this machine's clock; ISO 8601. None while it is paused."""
    last: LastRun | None
    config_file: str | None
    config_changed: bool | None
    """Whether the file is another one now, or gone; none without a file."""
    config_missing: bool

    @property
    def what_with(self) -> str:
        """What it does, and with the settings of which file."""
        return f"{self.what}, {Path(self.config_file).name}" if self.config_file else self.what

    @property
    def when(self) -> str:
        """The trigger, and whose clock it means."""
        by_clock = self.timezone and not self.trigger.startswith("every")
        return f"{self.trigger} {self.timezone}" if by_clock else self.trigger

    @property
    def next_words(self) -> str:
        """When it fires next, for a person."""
        if self.paused:
            return "paused"
        return _moment(self.next) if self.next else "-"

    @property
    def last_words(self) -> str:
        """What became of the newest run, for a person."""
        if self.last is None:
            return "not run yet"
        return f"{self.last.state} {_moment(self.last.at)}" if self.last.at else self.last.state

    @property
    def notes(self) -> list[str]:
        """What a person should know beside: the config file, a failure."""
        found = []
        if self.config_changed:
            file = Path(str(self.config_file)).name
            what = "is gone" if self.config_missing else "has changed"
            found.append(
                f"{file} {what} since; the settings of before are used. Create the schedule again "
                "with the same name to take other ones."
            )
        if self.last and self.last.message:
            found.append(f"{self.last.state}: {self.last.message}")
        return found


def views() -> list[ScheduleView]:
    """Return all schedules and watches of this folder.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    return [
        view(each)
        for each in deployments.deployments()
        if each.labels[deployments.KIND] in deployments.NAMED_KINDS
    ]


def view(deployment: DeploymentResponse) -> ScheduleView:
    """Return one deployment as it is shown.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    schedule = deployment.schedules[0].schedule if deployment.schedules else None
    paused = deployments.is_paused(deployment)
    coming = schedule_times.next_times(schedule) if schedule and not paused else []
    labels = deployment.labels
    config_state = schedule_plan.config_state(labels)
    kind = _kind(deployment)
    return ScheduleView(
        name=deployments.name_of(deployment),
        kind=kind,
        what=_what(kind, deployment.parameters, labels),
        trigger=_trigger(schedule),
        timezone=getattr(schedule, "timezone", None),
        paused=paused,
        next=coming[0].astimezone().isoformat(timespec="seconds") if coming else None,
        last=_last(deployments.last_run(deployment.id)),
        config_file=_text(labels.get(schedule_plan.CONFIG_FILE)),
        config_changed=None if config_state is None else config_state != "same",
        config_missing=config_state == "gone",
    )


def table(shown: list[ScheduleView]) -> list[str]:
    """Return the lines of `schedule list`."""
    head = ("NAME", "WHAT", "WHEN", "NEXT", "LAST RUN")
    rows = [head] + [
        (each.name, each.what_with, each.when, each.next_words, each.last_words) for each in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    with_notes = [lines[0]]
    for line, each in zip(lines[1:], shown, strict=True):
        with_notes += [line, *(f"  {note}" for note in each.notes)]
    return with_notes


def description(plan: Plan, times: Times) -> str:
    """Return what stands on the deployment's page in Prefect, in markdown."""
    what = _what(plan.kind, plan.parameters, plan.labels)
    lines = [f"{what[0].upper()}{what[1:]}: {times.words}, {times.timezone}."]
    if file := plan.labels.get(schedule_plan.CONFIG_FILE):
        made = dt.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        lines.append(
            f"The settings are those of `{file}` as it was on {made}. `patchline schedule create` "
            "with the same name takes the file as it is then."
        )
    lines.append("`patchline schedule list` shows it in the terminal.")
    return "\n\n".join(lines)


def _kind(deployment: DeploymentResponse) -> Literal["train", "predict", "watch"]:
    if deployment.labels[deployments.KIND] == "watch":
        return "watch"
    return "predict" if "out" in deployment.parameters else "train"


def _what(kind: str, parameters: dict[str, Any], labels: dict[str, Any]) -> str:
    if kind == "predict":
        return f"predicts {parameters.get('images')} with {parameters.get('model')}"
    if kind == "watch":
        return f"trains on new images in {labels.get(deployments.WATCH_FOLDER)}"
    data = parameters.get("config", {}).get("data", {})
    return f"trains on {data.get('path') or data.get('source')}"


def _trigger(schedule: SCHEDULE_TYPES | None) -> str:
    if isinstance(schedule, CronSchedule):
        return schedule.cron
    if isinstance(schedule, IntervalSchedule):
        return f"every {schedule_times.duration_words(schedule.interval)}"
    return "when images are new" if schedule is None else "set in Prefect"


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
        message=message[:_LONGEST_MESSAGE],
    )


def _moment(text: str) -> str:
    """Return a time by this machine's clock, whose zone stands beside it, as a person reads it."""
    return dt.datetime.fromisoformat(text).astimezone().strftime("%a %Y-%m-%d %H:%M:%S %Z")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
