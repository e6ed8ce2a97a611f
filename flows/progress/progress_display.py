"""Show progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from patchline.pipeline.redaction import redact_text
from patchline.pipeline.registry.browsing.notebook import NotebookLines, is_notebook
from patchline.pipeline.terminal_words import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_PLAIN_SECONDS = 10.0
_INDENT, _BAR_WIDTH, _WIDE = 9, 24, 130
"""Characters: before a text, and of the bar, halved where the terminal is not this wide."""
_TRAINING = "Training"
Event = dict[str, Any]


class Display(Protocol):
    """Something that shows stages and their progress."""

    def stage(self, name: str) -> None:
        """Start a stage."""

    def note(self, text: str) -> None:
        """Show a line of text."""

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Show that `done` of `total` units of the work are done."""


class Silent:
    """Show nothing: for flows without a terminal, whose log is in the Prefect UI."""

    def stage(self, name: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Show nothing."""


class PlainLines:
    """A line at the start of each stage, and one every ten seconds while it runs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_line = time.monotonic()
        self._started = time.monotonic()
        self._label = ""
        self._began = (self._started, 0)
        self._done = 0

    def stage(self, name: str) -> None:
        """Write the stage with the seconds since the start."""
        self._line(visible(name))

    def note(self, text: str) -> None:
        """Write the text."""
        self._line(f"  {visible(redact_text(text))}")

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Write a line if ten seconds have passed since the last one."""
        if label != self._label or done < self._done:  # also a second training of a run
            self._label, self._began = label, (time.monotonic(), done)
        self._done = done
        if time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            left = self._time_left(done, total)
            self._line(f"  {_format_progress(label, done, total, unit)}{left}{_after(beside)}")

    def _time_left(self, done: int, total: int) -> str:
        """Return the seconds left at the pace so far; nothing as long as there is no pace."""
        began, first = self._began
        if not first < done < total:
            return ""
        seconds = (time.monotonic() - began) / (done - first) * (total - done)
        return f", {seconds:.0f} s left"

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        print(f"[{self._last_line - self._started:5.0f} s] {text}", file=self._stream, flush=True)


class TerminalBars:
    """One line for each stage, and below it a bar that moves as long as the stage runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._label = ""
        self._started = time.monotonic()

    def stage(self, name: str) -> None:
        """Print the stage, and let a bar move until its progress is known."""
        from rich.markup import escape

        self._end_bar()
        seconds = time.monotonic() - self._started
        self._progress.console.print(
            f"[dim]{seconds:5.0f} s[/dim]  {escape(visible(name))}", highlight=False
        )
        self._start_bar("", None)

    def note(self, text: str) -> None:
        """Print the text above the bar; its lines begin below each other where it is long."""
        from rich.padding import Padding
        from rich.text import Text

        shown = Padding(Text(visible(redact_text(text)), style="dim"), (0, 0, 0, _INDENT))
        self._progress.console.print(shown)

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Move the bar; once all is done, show that the stage still runs."""
        next_label = label if done < total else ""
        if self._task is None or next_label != self._label:
            self._start_bar(next_label, total if next_label else None)
        if next_label and self._task is not None:
            counts = f"{done:,}/{total:,} {unit}".rstrip()
            self._progress.update(
                self._task, completed=done, total=total, counts=counts, beside=beside
            )

    def _start_bar(self, label: str, total: int | None) -> None:
        """Replace the bar by a new one, which pulses if there is no total."""
        self._end_bar()
        self._label = label
        self._task = self._progress.add_task(label, total=total, counts="", beside="")

    def _end_bar(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


class MirroredDisplay:
    """A display that also writes to the Prefect UI while a flow runs."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def stage(self, name: str) -> None:
        """Show the stage here and in the flow run's log."""
        self._display.stage(name)
        self._log(name)

    def note(self, text: str) -> None:
        """Write the text here and into the flow run's log."""
        self._display.note(text)
        self._log(text)

    def advance(
        self, label: str, done: int, total: int, beside: str = "", *, unit: str = ""
    ) -> None:
        """Move the bar here and the progress artifact of the task."""
        from patchline.flows.progress import prefect_progress

        self._display.advance(label, done, total, beside, unit=unit)
        artifact = prefect_progress.artifact()
        if artifact:
            words = f"{_format_progress(label, done, total, unit)}{_after(beside)}"
            percent = 100 * done / max(1, total)
            artifact.show(percent, words, at_once=label == _TRAINING)

    def _log(self, text: str) -> None:
        from patchline.flows.progress import prefect_progress

        prefect_progress.log(text)


def _format_progress(label: str, done: int, total: int, unit: str) -> str:
    return f"{label}: {done:,} of {total:,} {unit}".rstrip()


def _after(beside: str) -> str:
    return f"; {beside}" if beside else ""


_current: Display = Silent()
_began: float | None = None


def display() -> Display:
    """Return the display of this process; if Prefect is loaded, its UI is written to as well."""
    # A command that never imported Prefect does not pay its import, which takes a second.
    return MirroredDisplay(_current) if "prefect" in sys.modules else _current


def command_began() -> float:
    """Return when this command has begun, on the monotonic clock; now if nothing is displayed."""
    return time.monotonic() if _began is None else _began


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[None]:
    """Show progress while the block runs, on the stream: a notebook's output or standard error."""
    global _began, _current  # noqa: PLW0603 - one process has one terminal
    _began = time.monotonic()
    notebook = NotebookLines() if stream is None and is_notebook() else None
    stream = stream or sys.stderr
    try:
        if notebook:
            _current = notebook
            yield
        elif stream.isatty():
            with _bars(stream) as progress:
                _current = TerminalBars(progress)
                yield
        else:
            _current = PlainLines(stream)
            yield
    finally:
        _current, _began = Silent(), None
        if notebook:
            notebook.close()


_LABELS = {
    "features": "Computing features",
    "tokens": "Computing tokens",
    "taught": "Predicting with the teacher",
    "fold": "Training without a part of the images",
}
"""Of the bar, by the unit of the progress."""


def show_predicting(done: int, total: int, images_per_second: float) -> None:
    """Show how many images have been predicted."""
    display().advance("Predicting", done, total, f"{images_per_second:.0f} images/s")


def show_event(event: Event) -> None:
    """Show an event of a worker process."""
    kind = event["kind"]
    if kind in ("warning", "note"):
        display().note(event["message"])
    elif kind == "log":
        _log(event["message"])
    elif kind == "metrics" and {"validation/loss", "head/validation/loss"} & event["values"].keys():
        of_head = "probe/regularization" in event["values"]
        display().note((_head_row if of_head else _epoch_row)(event["values"]))
    elif kind == "progress" and event["unit"] == "step":
        _show_training(event)
    elif kind == "progress":
        label = _LABELS.get(event["unit"], "Predicting")
        rate = event.get("images_per_second")
        beside = f"{rate:,.0f} images/s" if rate else ""
        display().advance(label, event["done"], event["total"], beside)


def _show_training(event: Event) -> None:
    """Show steps, or with a time limit seconds; the number of steps only once it has settled."""
    done, total, epoch = event["done"], event["total"], f"epoch {event['epoch']:,}"
    accuracy = f"accuracy {event['accuracy']:.1%}, " if "accuracy" in event else ""
    if "mAP" in event:  # of sets of labels, as last validated
        accuracy = f"validation mAP {event['mAP']:.1%}, "
    losses = (
        f"loss {event['loss']:.3f}, {accuracy}{event['images_per_second']:,.0f} images/s, "
        f"learning rate {event['learning_rate']:.2g}"
    )
    limit = event.get("limit_seconds")
    if limit is None:
        beside = f"{epoch}/{event['epochs']:,}, {losses}"
        display().advance(_TRAINING, done, total, beside, unit="steps")
        return
    if event["settled"]:
        epoch += f"/{event['epochs']:,}, step {done:,}/{total:,}"
    seconds, whole = round(event["seconds"]), max(1, round(limit))
    display().advance(_TRAINING, min(seconds, whole), whole, f"{epoch}, {losses}", unit="s")


def _epoch_row(values: dict[str, float]) -> str:
    """Return a line whose columns stand below each other from validation to validation."""
    if "validation/mAP" in values:
        label = f"epoch {values['epoch']:.4g}: validation mAP"
        return (
            f"{label:<26} {values['validation/mAP']:>6.1%}, "
            f"loss {values['validation/loss']:.4f}; training loss {values['train/loss']:.4f}; "
            f"{values['images_per_second']:,.0f} images/s"
        )
    if "validation/accuracy" not in values:
        label = f"epoch {values['epoch']:.4g}: validation loss"
        return (
            f"{label:<27} {values['validation/loss']:.4f}; training loss "
            f"{values['train/loss']:.4f}; {values['images_per_second']:,.0f} images/s"
        )
    label = f"epoch {values['epoch']:.4g}: validation accuracy"
    return (
        f"{label:<31} {values['validation/accuracy']:>6.1%}, "
        f"loss {values['validation/loss']:.3f}; training accuracy "
        f"{values['train/accuracy']:>6.1%}, loss {values['train/loss']:.3f}; "
        f"{values['images_per_second']:,.0f} images/s"
    )


def _head_row(values: dict[str, float]) -> str:
    """Return a line about a head that was fitted on frozen features."""
    values = {name.removeprefix("head/"): value for name, value in values.items()}
    chosen = (
        f"regularization C {values['probe/regularization']:g}, selected on the validation images"
    )
    loss = f"loss {values['validation/loss']:.3f}"
    if "validation/accuracy" in values:
        return (
            f"head: validation accuracy {values['validation/accuracy']:.1%}, {loss}; training "
            f"accuracy {values['train/accuracy']:.1%}; {chosen}"
        )
    quality = f"mAP {values['validation/mAP']:.1%}, " if "validation/mAP" in values else ""
    return f"head: validation {quality}{loss}; {chosen}"


def _log(text: str) -> None:
    """Write a line that is too much for a terminal into the flow run's log."""
    if "prefect" in sys.modules:
        from patchline.flows.progress import prefect_progress

        prefect_progress.log(text)


def _bars(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Clock(TimeRemainingColumn):
        """The time left, or without a total the time since the bar appeared."""

        def render(self, task: Task) -> Text:
            return TimeElapsedColumn().render(task) if task.total is None else super().render(task)

    class Beside(TextColumn):
        """What a narrow terminal cuts off first, so that the bar and the counts stay."""

        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    console = Console(file=stream)
    return Progress(
        TextColumn(f"{' ' * _INDENT}{{task.description}}"),
        BarColumn(
            bar_width=_BAR_WIDTH if console.width >= _WIDE else _BAR_WIDTH // 2,
            table_column=Column(no_wrap=True),
        ),
        TextColumn("{task.fields[counts]}", style="green"),
        Clock(compact=True, table_column=Column(no_wrap=True)),
        Beside("{task.fields[beside]}", style="dim", table_column=Column(no_wrap=False)),
        console=console,
        transient=True,
    )
