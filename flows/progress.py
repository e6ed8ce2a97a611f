"""Show how far long work has come: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from pipeline.redaction import redacted
from pipeline.terminal_words import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_PLAIN_SECONDS = 10.0
_TRAINING = "Training steps"
Event = dict[str, Any]


class Display(Protocol):
    """Something that shows stages and how far they have come."""

    def stage(self, name: str) -> None:
        """A stage begins."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def advance(self, label: str, done: int, total: int, beside: str = "") -> None:
        """Work has come this far."""


class Silent:
    """Show nothing: for flows that nobody watches, whose log is in the Prefect UI."""

    def stage(self, name: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def advance(self, label: str, done: int, total: int, beside: str = "") -> None:
        """Show nothing."""


class PlainLines:
    """A line at the start of each stage, and one every ten seconds while it goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_line = time.monotonic()
        self._started = time.monotonic()
        self._label = ""
        self._began = (self._started, 0)

    def stage(self, name: str) -> None:
        """Write the stage with the seconds since the start."""
        self._line(visible(name))

    def note(self, text: str) -> None:
        """Write the text."""
        self._line(f"  {visible(redacted(text))}")

    def advance(self, label: str, done: int, total: int, beside: str = "") -> None:
        """Write a line if ten seconds have passed since the last one."""
        if label != self._label:
            self._label, self._began = label, (time.monotonic(), done)
        if time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            left = f", {self._seconds_left(done, total):.0f} s left" if done < total else ""
            self._line(f"  {label}: {done} of {total}{left}{'; ' + beside if beside else ''}")

    def _seconds_left(self, done: int, total: int) -> float:
        began, first = self._began
        return (time.monotonic() - began) / max(1, done - first) * (total - done)

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        print(f"[{self._last_line - self._started:5.0f} s] {text}", file=self._stream, flush=True)


class TerminalBars:
    """One line a finished stage, and a bar with rate and time left for the one that goes on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._label = ""
        self._started = time.monotonic()

    def stage(self, name: str) -> None:
        """Take the last bar away and name the next stage."""
        from rich.markup import escape

        self._end_bar()
        seconds = time.monotonic() - self._started
        self._progress.console.print(
            f"[dim]{seconds:5.0f} s[/dim]  {escape(visible(name))}", highlight=False
        )

    def note(self, text: str) -> None:
        """Print the text above the bar."""
        shown = f"         {visible(redacted(text))}"
        self._progress.console.print(shown, style="dim", highlight=False, markup=False)

    def advance(self, label: str, done: int, total: int, beside: str = "") -> None:
        """Move the bar."""
        if self._task is None or label != self._label:
            self._end_bar()
            self._task = self._progress.add_task(label, total=total, beside="")
            self._label = label
        self._progress.update(self._task, completed=done, total=total, beside=beside)

    def _end_bar(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


class Told:
    """Another display whose words the Prefect UI gets, too, while a flow runs."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def stage(self, name: str) -> None:
        """Name the stage here and in the flow run's log."""
        self._shown.stage(name)
        self._log(name)

    def note(self, text: str) -> None:
        """Write the text here and into the flow run's log."""
        self._shown.note(text)
        self._log(text)

    def advance(self, label: str, done: int, total: int, beside: str = "") -> None:
        """Move the bar here and the progress artifact of the task."""
        from flows.training import prefect_progress

        self._shown.advance(label, done, total, beside)
        artifact = prefect_progress.artifact()
        if artifact:
            words = f"{label}: {done:,} of {total:,}{'; ' + beside if beside else ''}"
            percent = 100 * done / max(1, total)
            artifact.show(percent, words, at_once=label == _TRAINING)

    def _log(self, text: str) -> None:
        from flows.training import prefect_progress

        prefect_progress.log(text)


_current: Display = Silent()


def display() -> Display:
    """Return the display of this process; where Prefect may run a flow, its UI is told as well."""
    # A command that never imported Prefect does not pay its import, which takes a second.
    return Told(_current) if "prefect" in sys.modules else _current


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[None]:
    """Show progress on the stream (standard error) while the block runs."""
    global _current  # noqa: PLW0603 - one process has one terminal
    stream = stream or sys.stderr
    try:
        if stream.isatty():
            with _bars(stream) as progress:
                _current = TerminalBars(progress)
                yield
        else:
            _current = PlainLines(stream)
            yield
    finally:
        _current = Silent()


def show_event(event: Event) -> None:
    """Show an event of a worker process."""
    kind = event["kind"]
    if kind == "warning":
        display().note(event["message"])
    elif kind == "log":
        _log(event["message"])
    elif kind == "metrics":
        _log(_epoch_words(event["values"]))
    elif kind == "progress" and event["unit"] == "step":
        beside = (
            f"epoch {event['epoch']}/{event['epochs']}, training loss {event['loss']:.3f} and "
            f"accuracy {event['accuracy']:.1%}, {event['images_per_second']:,.0f} images/s"
        )
        display().advance(_TRAINING, event["done"], event["total"], beside)
    elif kind == "progress":
        display().advance("Predicting", event["done"], event["total"])


def _epoch_words(values: dict[str, float]) -> str:
    return (
        f"epoch {values['epoch']:.4g}: validation accuracy {values['validation/accuracy']:.1%}, "
        f"loss {values['validation/loss']:.3f}; training accuracy "
        f"{values['train/accuracy']:.1%}, loss {values['train/loss']:.3f}; "
        f"{values['images_per_second']:,.0f} images/s"
    )


def _log(text: str) -> None:
    """Write into the flow run's log what would be too much for a terminal."""
    if "prefect" in sys.modules:
        from flows.training import prefect_progress

        prefect_progress.log(text)


def _bars(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("         {task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[beside]}", style="dim"),
        console=Console(file=stream),
        transient=True,
    )
