"""A finished training that is extended equals one that was planned longer from the beginning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from patchline.pipeline.config import RunConfig
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.checkpoints.checkpoint import load
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.record import RunRecord
from patchline.pipeline.training.start import starting_state
from patchline.pipeline.training.start.starting_state import take_over
from patchline.pipeline.training.train_result import EpochRecord, TrainResult
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.workers.event_log import EventWriter
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.test_loop import (
    WORSE,
    _same,
    _Stop,
    _StoppingWriter,
    _trained,
    _weights,
)

CONSTANT: dict[str, Any] = {
    "optimizer": {"schedule": "constant", "warmup_fraction": 0.0},
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
}
"""A schedule on which the planned length changes nothing."""


def _extending(make_job: MakeJob, first: TrainingJob, folder: Path, epochs: int) -> TrainingJob:
    result = _trained(first)
    job = make_job(folder, training={"epochs": epochs}, **CONSTANT)
    extends = ExtendedTraining(run_id="earlier", folder=first.folder, steps=result.steps)
    return job.model_copy(update={"extends": extends})


def _curve(result: TrainResult) -> list[tuple[int, float, float | None]]:
    return [(each.step, each.train_loss, each.validation_accuracy) for each in result.history]


def test_an_extended_training_is_one_that_was_longer_from_the_beginning(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments and curve are equal bit for bit, also if the extension is interrupted."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    whole = make_job(tmp_path / "whole", training={"epochs": 4}, **CONSTANT)
    expected = _trained(whole)
    first = make_job(tmp_path / "first", training={"epochs": 2}, **CONSTANT)
    job = _extending(make_job, first, tmp_path / "extended", 4)
    with pytest.raises(_Stop):
        _trained(job, _StoppingWriter(job.folder / "events.jsonl", 14))
    result = _trained(job)
    assert _curve(result) == _curve(expected)
    assert (result.best_step, result.steps) == (expected.best_step, expected.steps)
    assert _same(_weights(job), _weights(whole))


def test_weights_of_the_finished_training_stay_the_best_if_nothing_is_better(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied, and patience counts from the extension's first validation."""
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    first = make_job(tmp_path / "first", training={"epochs": 3}, **CONSTANT)
    job = _extending(make_job, first, tmp_path / "extended", 8)
    training = job.config.training.model_copy(update={"early_stopping": 2})
    config = job.config.model_copy(update={"training": training})
    result = _trained(job.model_copy(update={"config": config}))
    assert (result.best_step, result.epochs) == (4, 5.0)
    assert (first.folder / "best/model.safetensors").read_bytes() == (
        result.best / "model.safetensors"
    ).read_bytes()


def test_new_settings_of_the_optimizer_are_those_that_train(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """Weight decay and momentum come from the new config; the moments are taken over."""
    sgd = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}
    first = make_job(tmp_path / "first", training={"epochs": 1}, optimizer=sgd)
    extends = ExtendedTraining(run_id="earlier", folder=first.folder, steps=_trained(first).steps)
    changed = {**sgd, "momentum": 0.5, "weight_decay": 0.2}
    job = make_job(tmp_path / "extended", training={"epochs": 2}, optimizer=changed)
    training = Training(job, EventWriter(job.folder / "events.jsonl"))
    take_over(job, extends, training.state, training.validator)
    groups = training.state.optimizer.param_groups
    assert {group["momentum"] for group in groups} == {0.5}
    assert {group["weight_decay"] for group in groups} == {0.2, 0.0}
    assert training.state.optimizer.state_dict()["state"]


def test_the_best_of_a_part_of_the_split_is_measured_again(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit leaves scores of a few images, which no score of all of them might exceed."""
    first = make_job(tmp_path / "first", training={"epochs": 1})
    extends = ExtendedTraining(run_id="earlier", folder=first.folder, steps=_trained(first).steps)
    job = make_job(tmp_path / "extended", training={"epochs": 2})
    training = Training(job, EventWriter(job.folder / "events.jsonl"))

    def of_a_part(file: Path, state: TrainState) -> None:
        load(file, state)
        assert state.best
        best.append(state.best)
        lucky = {"compared_accuracy": 1.0, "compared_loss": 0.0}
        state.best = state.best.model_copy(update=lucky)

    best: list[EpochRecord] = []
    monkeypatch.setattr(starting_state, "load", of_a_part)
    take_over(job, extends, training.state, training.validator)
    assert training.state.best
    assert training.state.best.compared == pytest.approx(best[0].compared)


@pytest.mark.parametrize("setting", [{"folds": 2}, {"refit": True}, {"time_limit": "90s"}])
def test_only_a_single_training_is_extended(setting: dict[str, Any]) -> None:
    """The message names the setting to leave out."""
    [name] = setting
    with pytest.raises(ValidationError, match=f"Leave out training.{name}"):
        RunConfig(record=RunRecord(extends="1234"), training=TrainingConfig(**setting))
