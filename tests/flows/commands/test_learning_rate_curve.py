"""`patchline plugins show schedule NAME` draws the learning rate without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.command_line import run_command_line
from patchline.pipeline.training.recipe.schedule import SCHEDULES
from tests.flows.commands.test_plugins_show import Output, _refusal, _shown


def test_the_rates_are_those_of_the_schedule(capsys: Output) -> None:
    """Linear without a warm-up falls from the peak to zero."""
    arguments = ("schedule", "linear", "--optimizer.warmup-fraction", "0")
    shown = _shown(capsys, *arguments, "--optimizer.learning-rate", "0.5")
    rates = shown["learning_rates"]
    expected = [0.5 * (1 - (point + 0.5) / len(rates)) for point in range(len(rates))]
    assert rates == pytest.approx(expected)


def test_the_curve_is_drawn(capsys: Output, tmp_path: Path) -> None:
    """The highest bars stand where the rate is highest, and a picture is written on request."""
    picture = tmp_path / "rates.svg"
    words = ["plugins", "show", "schedule", "wsd", "--picture", str(picture)]
    assert run_command_line(words) == 0
    top, *_, axis, _ = [line for line in capsys.readouterr().out.splitlines() if line[10:12]]
    drawn = picture.read_text(encoding="utf-8")
    assert "optimizer adamw, schedule wsd" in top
    assert "└──" in axis
    assert "<svg" in drawn


def test_an_optimizer_has_a_curve_too(capsys: Output) -> None:
    """Schedule-free AdamW is constant after the warm-up."""
    rates = _shown(capsys, "optimizer", "schedule_free")["learning_rates"]
    assert rates[0] < rates[10] == rates[-1]


def test_an_unknown_schedule_is_refused(capsys: Output) -> None:
    """The names that exist are listed."""
    refusal = _refusal(capsys, "schedule", "cosin")
    assert "There is no schedule 'cosin'" in refusal
    assert all(name in refusal for name in SCHEDULES)
