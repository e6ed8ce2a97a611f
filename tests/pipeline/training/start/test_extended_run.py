"""A finished training that is extended equals one that was planned longer from the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from patchline.pipeline.config import RunConfig
from patchline.pipeline.training.checkpoints.checkpoint import load
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob
from patchline.pipeline.training.record import RunRecord
from patchline.pipeline.training.start import starting_state
from patchline.pipeline.training.start.starting_state import take_over
from patchline.pipeline.training.train_result import EpochRecord
from patchline.pipeline.training.train_state import TrainState
from tests.pipeline.training.trained_jobs import (
    WORSE,
    Make,
    opened,
    same,
    stop,
    trained,
    weights_of,
)

CONSTANT: dict[str, Any] = {
    "optimizer": {"schedule": "constant", "warmup_fraction": 0.0},
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
}
"""A schedule on which the planned length changes nothing."""


def _extending(make: Make, first: dict[str, Any], changes: dict[str, Any]) -> TrainingJob:
    """Return the job that extends a finished one."""
    finished = make("first", **first)
    steps = trained(finished).steps
    extends = ExtendedTraining(run_id="earlier", folder=finished.folder, steps=steps)
    return make("extended", **changes).model_copy(update={"extends": extends})


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_an_extended_training_is_one_that_was_longer_from_the_beginning(make: Make) -> None:
    """Weights, moments and curve are equal bit for bit, also if the extension is interrupted."""
    short, long = ({**CONSTANT, "training": {"epochs": epochs}} for epochs in (2, 4))
    whole = make("whole", **long)
    expected = trained(whole)
    job = _extending(make, short, long)
    stop(job, 14)
    result = trained(job)
    curves = [
        [(each.step, each.train_loss, each.validation_accuracy) for each in done.history]
        for done in (result, expected)
    ]
    assert curves[0] == curves[1]
    assert same(weights_of(job), weights_of(whole))


def test_weights_of_the_finished_training_stay_the_best_if_nothing_is_better(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied, and patience counts from the extension's first validation."""
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    changes = {"training": {"epochs": 8, "early_stopping": 2}}
    job = _extending(make, {"training": {"epochs": 3}}, changes)
    result = trained(job)
    assert (result.best_step, result.epochs) == (4, 5.0)
    first, best = tmp_path / "first/best/model.safetensors", result.best / "model.safetensors"
    assert first.read_bytes() == best.read_bytes()


def test_the_best_of_a_part_of_the_split_is_measured_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit leaves scores of a few images, which no score of all of them might exceed."""
    job = _extending(make, {"training": {"epochs": 1}}, {"training": {"epochs": 2}})
    assert job.extends is not None
    training = opened(job)
    best: list[EpochRecord] = []

    def of_a_part(file: Path, state: TrainState) -> None:
        load(file, state)
        assert state.best
        best.append(state.best)
        lucky = {"compared_accuracy": 1.0, "compared_loss": 0.0}
        state.best = state.best.model_copy(update=lucky)

    monkeypatch.setattr(starting_state, "load", of_a_part)
    take_over(job, job.extends, training.state, training.validator)
    assert training.state.best
    assert training.state.best.compared == pytest.approx(best[0].compared)


@pytest.mark.parametrize("setting", [{"folds": 2}, {"refit": True}, {"time_limit": "90s"}])
def test_only_a_single_training_is_extended(setting: dict[str, Any]) -> None:
    """The message names the setting to leave out."""
    [name] = setting
    with pytest.raises(ValidationError, match=f"Leave out training.{name}"):
        RunConfig(record=RunRecord(extends="1234"), training=TrainingConfig(**setting))
