"""The outline of a search: what is told before it trains."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline import config_files
from patchline.pipeline.sweeping.config import SweepConfig
from patchline.pipeline.sweeping.outline import SearchOutline
from patchline.pipeline.sweeping.rungs import continues, expected_epochs
from patchline.pipeline.sweeping.space import SearchSpace


def _simulated_epochs(steps: tuple[int, ...], trials: int, values: np.random.Generator) -> int:
    """Return the epochs of one search whose settings make no difference."""
    reached: dict[int, list[float]] = {step: [] for step in steps}
    epochs = 0
    for number in range(trials):
        for step in steps:
            value = float(values.random())
            goes_on = number == 0 or continues(value, reached[step], 3)
            reached[step].append(value)
            if not goes_on:
                break
        epochs += step
    return epochs


@pytest.mark.parametrize("trials", [1, 7, 20])
def test_the_expected_epochs_are_those_of_searches_at_random(trials: int) -> None:
    """The mean of many, within a tenth."""
    steps = (1, 3, 9)
    values = np.random.default_rng(0)
    mean = np.mean([_simulated_epochs(steps, trials, values) for _ in range(300)])
    assert expected_epochs(steps, 3, trials) == pytest.approx(mean, rel=0.1)


def _outline(settings: SweepConfig, seconds_per_epoch: float | None) -> SearchOutline:
    flags = {"training": {"epochs": 9}}
    plan = config_files.requested("digits", preset_name="none", flags=flags)
    given = {"optimizer": {"learning_rate": "1e-4..1e-2"}, "model": {"depth": "4,6"}}
    return SearchOutline.of(settings, SearchSpace.of(given, plan), plan, seconds_per_epoch)


def test_the_outline_tells_space_trials_rungs_and_time() -> None:
    """Each setting with its range, its scale and the plan's value; the times from the speed."""
    outline = _outline(SweepConfig(trials=7, seeds=2), 60.0)
    lines = list(outline.lines())
    assert lines[0].split() == ["Setting", "Searched", "Scale", "Plan"]
    assert lines[1].split() == ["optimizer.learning_rate", "0.0001..0.01", "log", "0.002"]
    assert lines[2].split()[:3] == ["model.depth", "4,6", "choice"]
    text = "\n".join(lines)
    assert "7 trials, of at most 9 epochs each" in text
    assert "at epochs 1 and 3, one trial in 3 continues" in text
    assert "4 final fits of 9 epochs" in text
    assert outline.epochs is not None
    assert f"about {outline.epochs:.0f} min for the trials and about 36 min for the final" in text


def test_what_is_not_known_is_said() -> None:
    """Without a plan there is no speed; with a time limit alone no number of trials."""
    assert "how long it takes is not known" in "\n".join(_outline(SweepConfig(), None).lines())
    limited = "\n".join(_outline(SweepConfig(time_limit="8h"), 60.0).lines())
    assert "at most 8h, of at most 9 epochs each" in limited
    assert "training takes up to 8h for the trials" in limited
