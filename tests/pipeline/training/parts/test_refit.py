"""The parts of a run: refit, folds and their ensemble, each repeatable to the bit."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.metrics.intervals import mean_of_repeats, proportion
from patchline.pipeline.models.inference import normalised, predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.length.step_plan import Knot, StepPlan
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.part import TrainingPart, scaled
from patchline.pipeline.training.parts.ensemble_members import combine_members
from patchline.pipeline.training.parts.refit import Refit
from patchline.pipeline.training.recipe.weight_averaging import (
    LastWeights,
    measure_batch_norm,
    measure_batch_norm_often,
)
from patchline.pipeline.training.record import TrainingRecord
from patchline.pipeline.training.train_result import RefitResult
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugin_api import ImageSpec
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.test_loop import _Stop, _StoppingWriter, _trained

PLAN = ((0, 0.0, 40), (10, 0.2, 30), (20, 0.6, 30))


def _part(job: TrainingJob, part: TrainingPart, plan: tuple[Knot, ...] | None) -> TrainingJob:
    record = job.config.record.model_copy(update={"step_plan": plan})
    config = job.config.model_copy(update={"record": record})
    return job.model_copy(update={"part": part, "config": config})


def _refitted(job: TrainingJob, events: EventWriter | None = None) -> RefitResult:
    events = events or EventWriter(job.folder / "events.jsonl")
    try:
        return Refit(job, events).refit()
    finally:
        events.close()


# -- the plan of a later part ------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(numerator=st.integers(1, 60), denominator=st.integers(1, 60))
def test_a_scaled_plan_is_a_valid_plan(numerator: int, denominator: int) -> None:
    """Whatever the number of steps per epoch, the knots are accepted as a recorded plan."""
    knots = scaled(PLAN, numerator, denominator)
    assert TrainingRecord(step_plan=knots).step_plan == knots
    exact = StepPlan(PLAN).last_step * numerator / denominator
    assert abs(StepPlan(knots).last_step - exact) <= len(PLAN)


def test_a_part_follows_the_plan_epoch_for_epoch_and_stops_at_the_chosen_one() -> None:
    """Twice the steps per epoch: the same progress at the same epoch, up to the end."""
    part = TrainingPart(refit=True, plan_steps_per_epoch=5, epochs=4.0)
    knots = part.plan(PLAN, 10)
    TrainingRecord(step_plan=knots)
    before, plan = StepPlan(PLAN), StepPlan(knots)
    assert plan.last_step == 40
    for step in (0, 5, 12, 19):
        assert plan.progress(2 * step) == pytest.approx(before.progress(step))
    assert plan.progress(39) < 0.65
    assert StepPlan(TrainingPart(plan_steps_per_epoch=5).plan(PLAN, 10)).last_step == 60


# -- refit -------------------------------------------------------------------------------------

_REFIT = TrainingPart(refit=True, plan_steps_per_epoch=4, epochs=2.0)


def test_a_refit_trains_on_train_and_validation_and_resumes_to_the_same_weights(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All images but the test images are trained on; after a stop the weights are the same."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    model = {"dropout": 0.2, "stochastic_depth": 0.3}
    whole = _part(make_job(tmp_path / "whole", model=model), _REFIT, ((0, 0.0, 16),))
    result = _refitted(whole)
    rows = manifests.usable(manifests.load(whole.manifest_file))
    assert result.images == (rows["split"] != "test").sum()
    assert result.epochs == 2.0
    stopped = _part(make_job(tmp_path / "stopped", model=model), _REFIT, ((0, 0.0, 16),))
    with pytest.raises(_Stop):
        _refitted(stopped, _StoppingWriter(stopped.folder / "events.jsonl", 7))
    again = _refitted(stopped)
    assert again.steps == result.steps
    one, other = (load_file(each.weights / "model.safetensors") for each in (result, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (stopped.folder / "previous.safetensors").exists()


def test_a_refit_killed_after_its_last_checkpoint_saves_the_same_weights(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The weights are written again from the checkpoint."""
    job = _part(make_job(tmp_path), _REFIT, ((0, 0.0, 16),))
    first = (_refitted(job).weights / "model.safetensors").read_bytes()
    (tmp_path / "weights/model.safetensors").unlink()
    assert (_refitted(job).weights / "model.safetensors").read_bytes() == first


# -- folds and their ensemble ------------------------------------------------------------------


def test_an_ensemble_averages_the_calibrated_probabilities_of_the_folds(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """Saved and loaded, its softmax is the mean over the folds' models."""
    members = []
    for fold in (1, 2):
        job = make_job(tmp_path / f"fold{fold}", training={"epochs": 2})
        members.append(_trained(_part(job, TrainingPart(fold=fold, folds=2), None)).best)
    job = make_job(tmp_path / "ensemble")
    job = job.model_copy(update={"part": TrainingPart(members=tuple(members))})
    events = EventWriter(tmp_path / "events.jsonl")
    result = combine_members(job, events)
    events.close()
    images, rows = np.load(job.store / "images.npy"), np.arange(10)

    temperatures = [fit.temperature for fit in result.calibrations]

    def probabilities(folder: Path, temperature: float) -> torch.Tensor:
        model, description = load_model(folder)
        logits = predict_logits(model, images, rows, description.image)
        return torch.softmax(logits / temperature, dim=1)

    single = [
        probabilities(folder, temperature)
        for folder, temperature in zip(members, temperatures, strict=True)
    ]
    assert not torch.allclose(single[0], single[1], atol=1e-3)
    torch.testing.assert_close(probabilities(result.weights, 1.0), (single[0] + single[1]) / 2)


def test_folds_train_on_different_images(make_job: MakeJob, tmp_path: Path) -> None:
    """A fold is validated on images that it was not trained on."""
    seen = []
    for fold in (1, 2, 3):
        job = _part(make_job(tmp_path / str(fold)), TrainingPart(fold=fold, folds=3), None)
        data = Training(job, EventWriter(tmp_path / f"{fold}.jsonl")).data
        assert not set(data.training.rows) & set(data.validation_rows)
        seen += list(data.validation_rows)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"ensemble": True}, "Set training.folds"),
        ({"ensemble": True, "folds": 3, "refit": True}, "Leave one of them out"),
        ({"folds": 1}, "greater than or equal to 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    training: dict[str, Any], said: str
) -> None:
    """An ensemble needs folds, and there is either an ensemble or a refit."""
    with pytest.raises(ValidationError, match=said):
        TrainingConfig(**training)


def test_the_interval_of_the_folds_is_that_of_students_t() -> None:
    """Against scipy's, and cut off at the ends of the metric."""
    from scipy import stats

    values = [0.81, 0.84, 0.79, 0.88, 0.83]
    found = mean_of_repeats(values, (0.0, 1.0))
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.value == pytest.approx(np.mean(values))
    assert found.n == len(values)
    assert mean_of_repeats([0.9, 1.0], (0.0, 1.0)).high == 1.0


def test_equal_values_do_not_make_a_mean_certain() -> None:
    """Five folds without an error have the interval of all their images, not none."""
    assert mean_of_repeats([1.0] * 5, (0.0, 1.0), 60).low == pytest.approx(
        proportion(60, 60).low, abs=1e-6
    )
    few, wide = mean_of_repeats([1.0] * 5, (0.0, 1.0)), mean_of_repeats([0.7], (0.0, 1.0))
    assert few.low == pytest.approx(proportion(5, 5).low, abs=1e-6)
    assert (wide.low, wide.high) == (0, 1)
    unequal = mean_of_repeats([0.80, 0.81, 0.80, 0.80], (0.0, 1.0), 40)
    assert unequal.high - unequal.low > 0.2


# -- the average of the last weights -----------------------------------------------------------


@pytest.mark.parametrize("stop_after", [None, 9, 14])
def test_the_last_weights_are_averaged_uniformly_also_after_a_stop(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int | None
) -> None:
    """The result is the mean of three validations' weights; a stop changes nothing."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    saved: dict[int, dict[str, torch.Tensor]] = {}

    def remember(self: LastWeights, step: int, model: torch.nn.Module) -> None:
        saved[step] = {name: value.clone() for name, value in model.state_dict().items()}
        add(self, step, model)

    add = LastWeights.add
    monkeypatch.setattr(LastWeights, "add", remember)
    job = make_job(tmp_path, training={"average_last": 3})
    if stop_after:
        events = _StoppingWriter(tmp_path / "events.jsonl", stop_after)
        with pytest.raises(_Stop):
            Training(job, events).run()
        events.close()
    result = _trained(job)
    last = [saved[step] for step in sorted(saved)[-3:]]
    found = load_file(result.best / "model.safetensors")
    for name, value in found.items():
        expected = torch.stack([each[name].double() for each in last]).mean(0)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-6)
    assert result.averaged
    assert result.averaged.validations == 3
    assert result.best_step == result.steps
    assert not (tmp_path / "last_weights").exists()
    again = _trained(job)  # as if it had been killed before its result was written
    assert load_file(again.best / "model.safetensors").keys() == found.keys()
    assert again.averaged == result.averaged


def test_only_the_weights_that_may_be_averaged_stay_on_the_disk(tmp_path: Path) -> None:
    """Two are averaged: files before the older checkpoint are deleted down to two."""
    model = torch.nn.Linear(2, 2)
    last = LastWeights(tmp_path, 2)
    for step in range(1, 9):
        last.add(step, model)
        last.checkpointed(step)
    assert sorted(int(file.stem) for file in tmp_path.glob("*/*.safetensors")) == [5, 6, 7, 8]


def test_batch_norm_is_measured_again_for_an_average() -> None:
    """The statistics are those of the images, whatever they were before."""
    torch.manual_seed(0)
    image = ImageSpec(
        channels=3, height=8, width=8, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    layer = torch.nn.BatchNorm2d(3)
    torch.nn.init.constant_(layer.get_buffer("running_mean"), 7.0)
    model = torch.nn.Sequential(layer, torch.nn.Dropout(0.5))
    measure_batch_norm(model, images, np.arange(40), image, batch_size=10, seed=0)
    pixels = normalised(torch.from_numpy(images), image)
    torch.testing.assert_close(layer.get_buffer("running_mean"), pixels.mean((0, 2, 3)))
    assert layer.momentum == 0.1
    assert not model.training


@pytest.mark.parametrize(
    ("images", "batches"), [(1, [1]), (40, [20, 20]), (4095, [32] * 64), (4097, [32] * 42 + [22])]
)
def test_batch_norm_of_a_validation_is_that_of_few_images(
    make_job: MakeJob, tmp_path: Path, images: int, batches: list[int]
) -> None:
    """At most 2,048, from all of them; batches are as equal as they can be."""
    job = make_job(tmp_path, training={"batch_size": 32})
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    sizes: list[int] = []
    model[0].register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    stored = np.zeros((images, 8, 8, 3), np.uint8)
    data = SimpleNamespace(images=stored, training=SimpleNamespace(rows=np.arange(images)))
    measure_batch_norm_often(model, cast("TrainingData", data), job)
    assert sizes == batches


def test_weights_of_an_attempt_that_was_killed_are_forgotten(tmp_path: Path) -> None:
    """Training with a time limit may not come to a validation after the same steps again."""
    weights, model = LastWeights(tmp_path, 2), torch.nn.Linear(2, 2)
    for step in (10, 20, 30):
        weights.add(step, model)
    weights.forget_after(20)
    assert sorted(file.stem for file in tmp_path.rglob("*.safetensors")) == ["10", "20"]
