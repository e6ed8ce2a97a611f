"""A schedule or watch as `patchline schedule list` shows it, in the terminal and as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchline.pipeline.frozen_model import FrozenModel


class LastRun(FrozenModel):
    """The newest run of a schedule."""

    state: str
    """Prefect's name of its state: Completed, Failed, Running, ..."""
    at: str | None
    """When it entered that state; ISO 8601."""
    flow_run_id: str
    message: str
    """Why it did not complete, if so."""


class ScheduleSummary(FrozenModel):
    """One schedule or watch."""

    name: str
    kind: str
    """`train`, `predict`, `watch`, what a tool calls it, or `unknown` without the tool."""
    what: str
    """What it does, in words."""
    trigger: str
    """A cron expression, an interval such as `every 20m`, or another trigger in words."""
    timezone: str | None
    """That of a cron expression."""
    paused: bool
    next: str | None
    """When it runs next, in this machine's time zone; ISO 8601. None while it is paused."""
    last: LastRun | None
    config_file: str | None
    config_changed: bool | None
    """Whether the file has changed or was deleted; None without a file."""
    config_missing: bool

    @property
    def what_with(self) -> str:
        """What it does, and the name of its config file."""
        return f"{self.what}, {Path(self.config_file).name}" if self.config_file else self.what

    @property
    def when(self) -> str:
        """The trigger, with the time zone of a cron expression."""
        return f"{self.trigger} {self.timezone}" if self.timezone else self.trigger

    @property
    def next_words(self) -> str:
        """When it runs next, in words."""
        if self.paused:
            return "paused"
        return _local_time(self.next) if self.next else "-"

    @property
    def last_words(self) -> str:
        """The state of the newest run, in words."""
        if self.last is None:
            return "not run yet"
        return f"{self.last.state} {_local_time(self.last.at)}" if self.last.at else self.last.state

    @property
    def notes(self) -> list[str]:
        """What else a person should know: a changed config file, a failure."""
        notes = []
        if self.config_changed:
            file = Path(str(self.config_file)).name
            change = "was deleted" if self.config_missing else "has changed"
            notes.append(
                f"{file} {change} since then; the stored settings are used. Create the schedule "
                "again with the same name to update them."
            )
        if self.last and self.last.message:
            notes.append(f"{self.last.state}: {self.last.message}")
        return notes


def work_words(kind: str, parameters: Mapping[str, Any], watched: object = None) -> str:
    """Return in words what a schedule does.

    Args:
        kind: of the schedule.
        parameters: of its flow.
        watched: the folder of a watch.
    """
    if kind == "predict":
        return f"predicts {parameters.get('images')} with {parameters.get('model')}"
    if kind == "watch":
        return f"trains on new images in {watched}"
    data = parameters.get("config", {}).get("data", {})
    return f"trains on {data.get('path') or data.get('source')}"


def table(shown: Sequence[ScheduleSummary]) -> list[str]:
    """Return the lines of `schedule list`."""
    head = ("NAME", "WHAT", "WHEN", "NEXT", "LAST RUN")
    rows = [
        (each.name, each.what_with, each.when, each.next_words, each.last_words) for each in shown
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    notes = [[], *(each.notes for each in shown)]
    lines = []
    for row, below in zip([head, *rows], notes, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines += ["  ".join(cells).rstrip(), *(f"  {note}" for note in below)]
    return lines


def _local_time(text: str) -> str:
    """Return an ISO 8601 time in this machine's time zone, for people."""
    return dt.datetime.fromisoformat(text).astimezone().strftime("%a %Y-%m-%d %H:%M:%S %Z")
