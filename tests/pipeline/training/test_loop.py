"""The training loop: repeatable to the bit, also after a stop or extended, and it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from patchline.pipeline.config import RunConfig
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.checkpoint import load
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob, TrainingPart
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.recipe import optimizer
from patchline.pipeline.training.recipe.objectives import save_trained
from patchline.pipeline.training.recipe.weight_averaging import measure_batch_norm_often
from patchline.pipeline.training.record import RunRecord
from patchline.pipeline.training.run_length import Timed
from patchline.pipeline.training.start import take_over
from patchline.pipeline.training.train_result import EpochRecord
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.workspace.files.sealed_files import read_tensors
from tests.patience import patient
from tests.pipeline.training.trained_jobs import (
    BETTER,
    MAE,
    RANDOM,
    WORSE,
    Make,
    MakeIn,
    events_of,
    figures,
    label_set_job,
    opened,
    said,
    same,
    stop,
    taught,
    trained,
    weights_of,
)

Reference = tuple[TrainingJob, Any]
MIXED: dict[str, Any] = {
    "augmentation": {"name": "standard", "horizontal_flip": True, "erase": 0.5},
    "training": {"mixup": 0.4, "cutmix": 1.0, "epochs": 2},
}
SETS: dict[str, Any] = {
    "model": {"dropout": 0.2},
    "training": {**MIXED["training"], "loss": "asymmetric", "class_balance": "weights"},
}


@pytest.fixture(scope="module")
def reference(make_shared: Make) -> Reference:
    """Return one finished fit with everything random in it; tests must not change it."""
    job = make_shared(**RANDOM)
    return job, trained(job)


def test_the_same_job_gives_the_same_weights(reference: Reference, make: Make) -> None:
    """Twice the same job leads to the same weights, averages and figures to the last bit.

    A third time, what is finished, but not yet reported, is found again with the same weights.
    """
    again = make(**RANDOM)
    for _ in range(2):  # as if the process had died before it wrote its result
        result = trained(again)
        assert result.best_step == reference[1].best_step
        assert figures(result) == figures(reference[1])
        assert same(weights_of(again), weights_of(reference[0]))


def test_another_seed_gives_other_weights(reference: Reference, make: Make) -> None:
    """So the tests that compare weights with those of the reference see it."""
    other = make(**RANDOM, seed=1)
    trained(other)
    theirs, ours = weights_of(reference[0]), weights_of(other)
    assert not torch.equal(ours["model.head.weight"], theirs["model.head.weight"])


@pytest.mark.usefixtures("_checkpoint_each_step")
@pytest.mark.parametrize(("stop_after", "resumed_at"), [(1, None), (4, 3), (5, 4)])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    reference: Reference,
    make: Make,
    stop_after: int,
    resumed_at: int | None,
) -> None:
    """Stopped around the end of an epoch of 4 steps, it resumes to the same bits."""
    job = make(**RANDOM)
    stop(job, stop_after)
    result = trained(job)
    assert said(job) == ([f"resuming from step {resumed_at}"] if resumed_at else [])
    assert figures(result) == figures(reference[1])
    assert same(weights_of(job), weights_of(reference[0]))


@pytest.mark.usefixtures("_checkpoint_each_step")
@pytest.mark.parametrize("kind", ["mixed", "float16", "sets", "taught", "masked"])
def test_every_kind_of_training_resumes_to_the_same_bits(
    make_in: MakeIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Mixed and augmented images, a scaled loss, sets of labels, a teacher, no labels at all."""
    monkeypatch.setattr(optimizer, "_FIRST", 2.0**20)  # the first updates overflow
    monkeypatch.setattr(optimizer, "_UPDATES", 3)

    def job_in(folder: Path) -> TrainingJob:
        if kind == "sets":
            return label_set_job(folder / "job", **SETS)
        if kind == "taught":
            return taught(make_in(folder), folder, training={"epochs": 2})
        half = {"training": {"epochs": 2, "precision": "float16"}}
        return make_in(folder)(**{"mixed": MIXED, "float16": half, "masked": MAE}[kind])

    whole, stopped = (job_in(tmp_path / name) for name in ("whole", "stopped"))
    expected = trained(whole)
    stop(stopped, 6)
    result = trained(stopped)
    assert "resuming from step 5" in said(stopped)
    assert figures(result) == figures(expected)
    assert same(weights_of(stopped), weights_of(whole))
    if kind == "float16":
        progress = json.loads(read_tensors(stopped.folder / "last.safetensors")[1]["progress"])
        assert progress["loss_scale"]["factor"] < 2.0**20


def test_data_loader_workers_change_nothing(make: Make) -> None:
    """Images that a process of their own loads and augments give the same weights."""
    alone = make("0", **MIXED)
    with_worker = make("1", **MIXED, data={"workers": 1})
    trained(alone)
    trained(with_worker)
    assert same(weights_of(with_worker), weights_of(alone))


@pytest.mark.usefixtures("_checkpoint_each_step")
@pytest.mark.parametrize("damage", ["last", "best"])
def test_a_damaged_checkpoint_is_left_out(
    reference: Reference, make: Make, tmp_path: Path, damage: str
) -> None:
    """One changed byte: it resumes from the previous checkpoint, or starts from scratch."""
    job = make(**RANDOM)
    stop(job, 7)
    file = tmp_path / {"last": "last.safetensors", "best": "best-4/model.safetensors"}[damage]
    content = bytearray(file.read_bytes())
    content[-100] ^= 16
    file.write_bytes(content)
    result = trained(job)
    [message] = said(job)
    how = "resuming from step 5" if damage == "last" else "starting from the beginning"
    assert message.startswith(f"{how} (last.safetensors or its best weights are damaged)")
    assert figures(result) == figures(reference[1])
    assert same(weights_of(job), weights_of(reference[0]))
    assert not (tmp_path / "previous.safetensors").exists()


def test_a_time_limit_records_a_plan_that_replays(make: Make, tmp_path: Path) -> None:
    """The recorded plan without the time limit leads to the same weights, bit for bit."""
    limit = f"{patient(0.2):.1f}s"
    lengths = {"epochs": None, "time_limit": limit}
    limited = make("limited", model={"stochastic_depth": 0.3}, training=lengths)
    result = trained(limited)
    assert result.stopped_because == f"time limit of {limit}"
    config = launching.replayable(limited.config, result)
    assert config.training.time_limit is None
    replay = limited.model_copy(update={"config": config, "folder": tmp_path / "replay"})
    again = trained(replay)
    assert again.steps == result.steps > 0
    assert figures(again) == figures(result)
    assert same(weights_of(replay), weights_of(limited))


def test_it_learns_the_photos(make: Make) -> None:
    """Stripes in three directions are told apart far better than by chance."""
    training = {"epochs": 12, "batch_size": 8}
    result = trained(make(training=training, optimizer={"learning_rate": 1e-2}))
    assert result.history[-1].train_loss < result.history[0].train_loss - 0.2
    assert result.best_validation_accuracy > 0.8


def test_the_best_weights_and_the_events_are_those_of_the_history(reference: Reference) -> None:
    """Of all validations, the best has replaced all others; each is reported once."""
    job, result = reference
    best = result.history[0]
    for number, record in enumerate(result.history[1:], start=2):
        best = record if record.replaces(best, result.history[:number]) else best
    assert result.best_step == best.step
    assert result.best_validation_accuracy == best.validation_accuracy
    metrics = events_of(job, "metrics")
    assert [(event["step"], event["values"]["validation/loss"]) for event in metrics] == [
        (record.step, record.validation_loss) for record in result.history
    ]
    last = events_of(job, "progress")[-1]
    assert last["done"] == last["total"] == result.steps
    rates = [record.learning_rate for record in result.history]
    assert 0.0 < rates[-1] < 0.05 * rates[0], "the schedule ends near zero"


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_a_newer_best_does_not_take_the_place_of_the_checkpoints(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the newer best is not reached again after a stop, the result holds the older one."""
    job = make(**RANDOM)
    stop(job, 5)
    kept = load_file(tmp_path / "best-4/model.safetensors")
    newer = tmp_path / "best-8"
    newer.mkdir()  # as a kill between the next validation and its checkpoint leaves it
    (newer / "model.safetensors").write_bytes(b"newer")
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    result = trained(job)
    assert result.best_step == 4
    assert same(load_file(result.best / "model.safetensors"), kept)
    assert not list(tmp_path.glob("best-*"))


def test_at_most_two_best_weights_lie_on_the_disk(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's and the newest, however many epochs improve and keep training going."""
    monkeypatch.setattr(EpochRecord, "compared", BETTER)
    found: list[int] = []

    def counted(*inputs: Any) -> None:
        save_trained(*inputs)
        found.append(len(list(tmp_path.glob("best-*"))))

    monkeypatch.setattr("patchline.pipeline.training.loop.save_trained", counted)
    trained(make(training={"early_stopping": 1}))
    assert len(found) == 4
    assert max(found) <= 3  # the one that is just written, and those two
    assert [each.name for each in tmp_path.glob("best*")] == ["best"]


def test_epochs_end_a_training_before_its_time_limit(make: Make) -> None:
    """Whichever ends first; the learning rate then reaches zero at the last of them."""
    result = trained(make(training={"epochs": 2, "time_limit": "10m"}))
    assert (result.epochs, result.stopped_because) == (2.0, "maximum of 2 epochs")


@pytest.mark.parametrize("length", [{"epochs": 1}, {"time_limit": "0.001s"}])
def test_a_training_of_one_step_does_one(make: Make, length: dict[str, Any]) -> None:
    """Its only step has a learning rate, so the result is not the random start."""
    training = opened(make(training={"batch_size": 1000, **length}))
    start = training.state.model.get_parameter("head.weight").clone()
    result = training.run()
    assert result.steps == 1
    assert result.history[0].learning_rate > 0.1 * training.config.optimizer.learning_rate
    best = load_file(result.best / "model.safetensors")
    assert not torch.equal(best["head.weight"], start)


def test_weights_that_the_optimizer_averages_have_their_own_batch_statistics(make: Make) -> None:
    """Schedule-Free computes its gradients at other weights, whose statistics do not fit."""
    job = make(
        optimizer={"name": "schedule_free", "schedule": "constant"},
        model={"patch_embedding": {"name": "whitened"}},
        training={"epochs": 1},
    )
    training = opened(job)
    training.length.validations = timed = Timed(1e6, 1000, training.validator.images, 8)
    kept = load_model(training.run().best)[0]
    assert timed.preparation_seconds == training.state.batch_norm_seconds > 0
    before = {name: value.clone() for name, value in kept.state_dict().items()}
    measure_batch_norm_often(kept, training.data, job)
    assert any("running_var" in name for name in before)
    assert same(before, kept.state_dict())


def test_a_fit_that_stops_at_rungs_ends_where_an_uninterrupted_one_does(make: Make) -> None:
    """Stopped after epochs 1 and 2 of 3 and continued from its checkpoint: the same bits."""
    changes = {**RANDOM, "training": {**RANDOM["training"], "epochs": 3}}
    changes["record"] = {"average_last": 2}
    whole, job = (make(name, **changes) for name in ("whole", "rungs"))
    expected = trained(whole)
    for epochs in (1, 2):
        stopped = trained(job.model_copy(update={"part": TrainingPart(epochs=epochs)}))
        assert stopped.epochs == epochs
    ended = trained(job)
    assert ended.step_plan == expected.step_plan
    assert figures(ended) == figures(expected)
    assert ended.averaged == expected.averaged
    assert same(weights_of(job), weights_of(whole))


@pytest.mark.usefixtures("_checkpoint_each_step")
def test_it_stops_after_validations_without_improvement(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the best epoch, and an interrupted run stops at the same step."""
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    settings = {"early_stopping": 2}
    whole, stopped = (make(name, training=settings) for name in ("whole", "stopped"))
    result = trained(whole)
    assert (result.steps, result.best_step, result.best_epoch) == (12, 4, 1.0)
    reason = "no improvement in 2 validations since epoch 1, which is the best"
    assert result.stopped_because == reason
    assert result.sentence().startswith(f"stopped at epoch 3: {reason} (")
    stop(stopped, 10)
    resumed = trained(stopped)
    assert figures(resumed) == figures(result)
    assert resumed.stopped_because == result.stopped_because
    assert same(weights_of(stopped), weights_of(whole))


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

    monkeypatch.setattr(f"{take_over.__module__}.load", of_a_part)
    take_over(job, job.extends, training.state, training.validator)
    assert training.state.best
    assert training.state.best.compared == pytest.approx(best[0].compared)


@pytest.mark.parametrize("setting", [{"folds": 2}, {"final_model": "refit"}, {"time_limit": "90s"}])
def test_only_a_single_training_is_extended(setting: dict[str, Any]) -> None:
    """The message names the setting to leave out."""
    [name] = setting
    with pytest.raises(ValidationError, match=f"Leave out training.{name}"):
        RunConfig(record=RunRecord(extends="1234"), training=TrainingConfig(**setting))
