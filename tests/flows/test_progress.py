"""What a terminal and a log show while a command works."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from flows import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _training(**values: Any) -> dict[str, Any]:
    step = {"kind": "progress", "unit": "step", "done": 30, "total": 142, "epoch": 2, "epochs": 7}
    return {**step, "loss": 1.5, "accuracy": 0.5, "images_per_second": 90.0, **values}


def _line_of(event: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0)
    with progress.shown(stream):
        progress.show_event(event)
    return stream.getvalue()


def test_a_bar_moves_from_the_start_of_a_stage_to_its_end() -> None:
    """It pulses before the first progress and after the last, and never stands still at 100 %."""
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


def test_a_training_of_epochs_shows_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit the number of steps is known from the start."""
    line = _line_of(_training(), monkeypatch)
    assert "Training: 30 of 142 steps" in line
    assert "epoch 2 of 7" in line


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
    assert "epoch 2 of 7, step 30 of 142" in settled


def test_the_time_left_of_a_second_training_counts_from_its_own_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fold or a refit starts again at the first step, after the steps of the one before."""
    stream, clock = io.StringIO(), [0.0]
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: clock[0])
    lines = progress.PlainLines(stream)
    for second, done in ((0, 1), (1000, 90), (1020, 1), (1070, 51)):
        clock[0] = float(second)
        lines.advance("Training", done, 100)
    assert "51 of 100, 49 s left" in stream.getvalue()
