"""What a terminal and a log show while a command works."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.text import Text

from patchline.flows.progress import progress_display


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
    monkeypatch.setattr(progress_display, "_PLAIN_SECONDS", 0)
    with progress_display.show_progress(stream):
        progress_display.show_event(event)
    return stream.getvalue()


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_keeps_the_bar_the_counts_and_every_word(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a line that is too long, only its end is cut off; the lines of a text stand in a column.

    A bar pulses before the first progress and after the last.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, text = _Terminal(), "the image [red]rose[/red].jpg cannot be decoded; " * 4
    shown = progress_display._bars(stream)
    bars = progress_display.TerminalBars(shown)
    bars.note(text)
    lines = [Text.from_ansi(line).plain for line in stream.getvalue().splitlines()]
    assert {len(line) - len(line.lstrip()) for line in lines} == {9}
    assert " ".join(line.strip() for line in lines) == text.strip()
    bars.stage("Training")
    totals: list[float | None] = []
    for done in (30, 45):
        totals += [task.total for task in shown.tasks]
        bars.advance("Training", done, 45, "epoch 2, training loss 1.500, accuracy 50.0%", unit="s")
        if done < 45:
            shown.console.print(shown.get_renderable())
            line = Text.from_ansi(stream.getvalue().splitlines()[-1]).plain
            assert len(line) <= columns
            for words in ("Training ", "━" * 8, "30/45 s", "epoch"):
                assert words in line
    assert [*totals, *(task.total for task in shown.tasks)] == [None, 45, None]


def test_a_training_shows_its_steps_once_their_number_has_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a time limit only the time and the epoch are shown before: the planned end jumps."""
    line = _line_of(_training(), monkeypatch)
    assert "Training: 30 of 142 steps" in line
    assert "epoch 2/7" in line
    assert "90 images/s, learning rate 0.001" in line
    timed = {"seconds": 24.4, "limit_seconds": 90.0}
    jumping = _line_of(_training(**timed, settled=False), monkeypatch)
    assert "Training: 24 of 90 s" in jumping
    assert "epoch 2," in jumping
    assert "142" not in jumping
    assert "epoch 2/7, step 30/142" in _line_of(_training(**timed, settled=True), monkeypatch)
