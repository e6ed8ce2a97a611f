"""The parts of a run: refit, folds and their ensemble, each repeatable to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from scipy import stats

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats, proportion
from patchline.pipeline.models.inference import normalize, predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import TrainingJob, TrainingPart, scale_knots
from patchline.pipeline.training.parts.after_folds import combine_members
from patchline.pipeline.training.recipe.weight_averaging import (
    LastWeights,
    measure_batch_norm,
)
from patchline.pipeline.training.record import TrainingRecord
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.workers.event_log import EventWriter
from tests.pipeline.models.probing.tiny_models import image_spec
from tests.pipeline.training.trained_jobs import Make, same, stop, trained

PLAN = ((0, 0.0, 40), (10, 0.2, 30), (20, 0.6, 30))


def _refit(make: Make, name: str) -> TrainingJob:
    """Return the job of a refit of two epochs of a longer plan."""
    record = {"step_plan": [[0, 0.0, 16]]}
    job = make(name, model={"dropout": 0.2, "stochastic_depth": 0.3}, record=record)
    part = TrainingPart(refit=True, plan_steps_per_epoch=4, epochs=2.0)
    return job.model_copy(update={"part": part})


def _fold(make: Make, fold: int, folds: int) -> TrainingJob:
    job = make(f"fold{fold}", training={"epochs": 2})
    return job.model_copy(update={"part": TrainingPart(fold=fold, folds=folds)})


@given(numerator=st.integers(1, 60), denominator=st.integers(1, 60))
def test_a_scaled_plan_is_a_valid_plan(numerator: int, denominator: int) -> None:
    """Whatever the number of steps per epoch, the knots are accepted as a recorded plan."""
    knots = scale_knots(PLAN, numerator, denominator)
    assert TrainingRecord(step_plan=knots).step_plan == knots
    exact = StepPlan(PLAN).last_step * numerator / denominator
    assert abs(StepPlan(knots).last_step - exact) <= len(PLAN)


def test_a_part_follows_the_plan_epoch_for_epoch_and_stops_at_the_chosen_one() -> None:
    """Twice the steps per epoch: the same progress at the same epoch, up to the end."""
    part = TrainingPart(refit=True, plan_steps_per_epoch=5, epochs=4.0)
    before, plan = StepPlan(PLAN), StepPlan(part.plan(PLAN, 10))
    assert plan.last_step == 40
    for step in (0, 5, 12, 19):
        assert plan.progress(2 * step) == pytest.approx(before.progress(step))
    assert plan.progress(39) < 0.65
    assert StepPlan(TrainingPart(plan_steps_per_epoch=5).plan(PLAN, 10)).last_step == 60


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_a_refit_trains_on_train_and_validation_and_resumes_to_the_same_weights(make: Make) -> None:
    """All images but the test images are trained on; after a stop the weights are the same.

    So they are if it was killed between its last checkpoint and the end.
    """
    whole, stopped = (_refit(make, name) for name in ("whole", "stopped"))
    result = trained(whole)
    rows = manifests.usable(manifests.load(whole.manifest_file))
    assert result.images == (rows["split"] != "test").sum()
    assert result.epochs == 2.0
    stop(stopped, 7)
    for _ in range(2):
        again = trained(stopped)
        assert again.steps == result.steps
        weights = (load_file(each.weights / "model.safetensors") for each in (result, again))
        assert same(*weights)
        assert not (stopped.folder / "previous.safetensors").exists()
        (again.weights / "model.safetensors").unlink()


def test_an_ensemble_averages_the_calibrated_probabilities_of_the_folds(
    make: Make, tmp_path: Path
) -> None:
    """Saved and loaded, its softmax is the mean over the folds' models."""
    members = tuple(trained(_fold(make, fold, 2)).best for fold in (1, 2))
    job = make("ensemble")
    job = job.model_copy(update={"part": TrainingPart(members=members)})
    result = combine_members(job, EventWriter(tmp_path / "events.jsonl"))
    images, rows = np.load(job.store / "images.npy"), np.arange(10)

    def probabilities(folder: Path, temperature: float) -> torch.Tensor:
        model, description = load_model(folder)
        logits = predict_logits(model, images, rows, description.image)
        return torch.softmax(logits / temperature, dim=1)

    temperatures = [fit.temperature for fit in result.calibrations]
    single = list(map(probabilities, members, temperatures))
    assert not torch.allclose(single[0], single[1], atol=1e-3)
    torch.testing.assert_close(probabilities(result.weights, 1.0), (single[0] + single[1]) / 2)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"final_model": "ensemble"}, "Set training.folds"),
        ({"final_model": "best", "folds": 3}, "Set training.final_model to refit or ensemble"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    training: dict[str, Any], said: str
) -> None:
    """An ensemble needs folds, and of folds no single model is best."""
    with pytest.raises(ValidationError, match=said):
        TrainingConfig(**training)


def test_the_interval_of_the_folds_is_that_of_students_t() -> None:
    """Against scipy's, and cut off at the ends of the metric."""
    values = [0.81, 0.84, 0.79, 0.88, 0.83]
    found = mean_of_repeats(values, (0.0, 1.0))
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.value == pytest.approx(np.mean(values))
    assert found.n == len(values)
    assert mean_of_repeats([0.9, 1.0], (0.0, 1.0)).high == 1.0


def test_equal_values_do_not_make_a_mean_certain() -> None:
    """Five folds without an error have the interval of all their images, not none."""
    for images, given_images in ((60, (60,)), (5, ())):
        found = mean_of_repeats([1.0] * 5, (0.0, 1.0), *given_images)
        assert found.low == pytest.approx(proportion(images, images).low, abs=1e-6)
    wide = mean_of_repeats([0.7], (0.0, 1.0))
    assert (wide.low, wide.high) == (0, 1)
    unequal = mean_of_repeats([0.80, 0.81, 0.80, 0.80], (0.0, 1.0), 40)
    assert unequal.high - unequal.low > 0.2


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_the_last_weights_are_averaged_uniformly_also_after_a_stop(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the mean of three validations' weights; a stop changes nothing."""
    saved: dict[int, dict[str, torch.Tensor]] = {}

    def remember(self: LastWeights, step: int, model: torch.nn.Module) -> None:
        saved[step] = {name: value.clone() for name, value in model.state_dict().items()}
        add(self, step, model)

    add = LastWeights.add
    monkeypatch.setattr(LastWeights, "add", remember)
    job = make(record={"average_last": 3})
    stop(job, 14)
    result = trained(job)
    last = [saved[step] for step in sorted(saved)[-3:]]
    found = load_file(result.best / "model.safetensors")
    for name, value in found.items():
        expected = torch.stack([each[name].double() for each in last]).mean(0)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-6)
    assert result.averaged.validations == 3
    assert result.best_step == result.steps
    assert not (tmp_path / "last_weights").exists()
    again = trained(job)  # as if it had been killed before its result was written
    assert same(load_file(again.best / "model.safetensors"), found)
    assert again.averaged == result.averaged


def test_only_the_weights_that_may_be_averaged_stay_on_the_disk(tmp_path: Path) -> None:
    """Two are averaged: files before the older checkpoint are deleted down to two.

    Those of an attempt that was killed go too: with a time limit, the next one may not come to a
    validation after the same steps.
    """
    model, weights = torch.nn.Linear(2, 2), LastWeights(tmp_path, 2)

    def steps() -> list[int]:
        return sorted(int(file.stem) for file in tmp_path.glob("*/*.safetensors"))

    for step in range(1, 9):
        weights.add(step, model)
        weights.checkpointed(step)
    assert steps() == [5, 6, 7, 8]
    weights.forget_after(6)
    assert steps() == [5, 6]


def test_batch_norm_is_measured_again_for_an_average() -> None:
    """The statistics are those of the images, whatever they were before."""
    image = image_spec(8)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    layer = torch.nn.BatchNorm2d(3)
    torch.nn.init.constant_(layer.get_buffer("running_mean"), 7.0)
    model = torch.nn.Sequential(layer, torch.nn.Dropout(0.5))
    measure_batch_norm(model, images, np.arange(40), image, batch_size=10, seed=0)
    pixels = normalize(torch.from_numpy(images), image)
    torch.testing.assert_close(layer.get_buffer("running_mean"), pixels.mean((0, 2, 3)))
    assert layer.momentum == 0.1
    assert not model.training
