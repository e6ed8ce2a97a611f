"""What a terminal and a log show while a command works."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.text import Text

from patchline.flows import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _training(**values: Any) -> dict[str, Any]:
    step = {"kind": "progress", "unit": "step", "done": 30, "total": 142, "epoch": 2, "epochs": 7}
    return {
        **step,
        "loss": 1.5,
        "accuracy": 0.5,
        "learning_rate": 1e-3,
        "images_per_second": 90.0,
        **values,
    }


def _line_of(event: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0)
    with progress.shown(stream):
        progress.show_event(event)
    return stream.getvalue()


def test_a_bar_moves_from_the_start_of_a_stage_to_its_end() -> None:
    """It pulses before the first progress and after the last, and never stands still at 100%."""
    shown = progress._bars(_Terminal())
    bars = progress.TerminalBars(shown)
    steps: list[Callable[[], None]] = [
        lambda: bars.stage("Reading"),
        lambda: bars.advance("Images", 1, 9),
        lambda: bars.advance("Images", 9, 9),
        lambda: bars.stage("Training"),
    ]
    totals = []
    for step in steps:
        step()
        totals.append([task.total for task in shown.tasks])
    assert totals == [[None], [9], [None], [None]]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_keeps_the_bar_and_the_counts(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a line that is too long, only the text at its end is cut off."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = _Terminal()
    shown = progress._bars(stream)
    bars = progress.TerminalBars(shown)
    bars.stage("Training")
    bars.advance("Training", 30, 45, "epoch 2, training loss 1.500, accuracy 50.0%", unit="s")
    shown.console.print(shown.get_renderable())
    line = Text.from_ansi(stream.getvalue().splitlines()[-1]).plain
    assert len(line) <= columns
    assert "Training " in line
    assert "━" * 8 in line
    assert "30/45 s" in line
    assert "epoch" in line


@pytest.mark.parametrize("columns", [60, 120])
def test_the_lines_of_a_long_text_begin_below_each_other(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in it are not taken for markup, and no word is lost."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, text = _Terminal(), "the image [red]rose[/red].jpg cannot be decoded; " * 4
    progress.TerminalBars(progress._bars(stream)).note(text)
    lines = [Text.from_ansi(line).plain for line in stream.getvalue().splitlines()]
    assert len(lines) > 1
    assert all(line.startswith(" " * 9) and line[9] != " " for line in lines)
    assert " ".join(line.strip() for line in lines) == text.strip()


def test_the_time_left_is_shown_once_there_is_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of a stage has nothing to compute it from."""
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0)
    with progress.shown(stream):
        for done in (1, 2, 9):
            progress.display().advance("Images", done, 9)
    first, second, last = stream.getvalue().splitlines()
    assert first.endswith("Images: 1 of 9")
    assert second.endswith("s left")
    assert last.endswith("Images: 9 of 9")


def test_a_training_of_epochs_shows_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit the number of steps is known from the start."""
    line = _line_of(_training(), monkeypatch)
    assert "Training: 30 of 142 steps" in line
    assert "epoch 2/7" in line
    assert "90 images/s, learning rate 0.001" in line


def test_each_validation_is_a_row_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of two epochs stand below each other."""
    values = {
        "epoch": 9.0, "validation/accuracy": 0.987, "validation/loss": 0.1, "train/accuracy": 1.0,
        "train/loss": 0.05, "learning_rate": 2e-3, "images_per_second": 1234.5,
    }  # fmt: skip
    rows = [
        _line_of({"kind": "metrics", "values": {**values, "epoch": epoch}}, monkeypatch)
        for epoch in (9.0, 10.0)
    ]
    assert "epoch 9: validation accuracy     98.7%, loss 0.100; training accuracy 100.0%" in rows[0]
    assert rows[0].index("loss") == rows[1].index("loss")


def test_a_time_limit_shows_the_steps_once_their_number_has_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before that only the time and the epoch are shown: the planned end still jumps."""
    timed = {"seconds": 24.4, "limit_seconds": 90.0}
    jumping = _line_of(_training(**timed, settled=False), monkeypatch)
    assert "Training: 24 of 90 s" in jumping
    assert "epoch 2," in jumping
    assert "142" not in jumping
    settled = _line_of(_training(**timed, settled=True), monkeypatch)
    assert "epoch 2/7, step 30/142" in settled


def test_the_time_left_of_a_second_training_counts_from_its_own_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fold or a refit starts again at the first step, after the steps of the one before."""
    stream, clock = io.StringIO(), [0.0]
    monkeypatch.setattr("patchline.flows.progress.time.monotonic", lambda: clock[0])
    lines = progress.PlainLines(stream)
    for second, done in ((0, 1), (1000, 90), (1020, 1), (1070, 51)):
        clock[0] = float(second)
        lines.advance("Training", done, 100)
    assert "51 of 100, 49 s left" in stream.getvalue()
