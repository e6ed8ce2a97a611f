"""The training loop: repeatable to the bit, also after a stop, and it learns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.errors import RunError
from patchline.pipeline.files.sealed_files import read_tensors
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training import training_data
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.length.validation_plan import Timed
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.recipe import loss_scale
from patchline.pipeline.training.recipe.objectives import save_trained
from patchline.pipeline.training.recipe.weight_averaging import measure_batch_norm_often
from patchline.pipeline.training.train_result import EpochRecord, TrainResult
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.patience import patient
from tests.pipeline.training.conftest import MakeJob

Weights = dict[str, torch.Tensor]
RANDOM: dict[str, Any] = {
    "model": {"dropout": 0.2, "attention_dropout": 0.1, "stochastic_depth": 0.3},
    "training": {"initial_image_scale": 0.5, "epochs": 2},
}
WORSE = property(lambda record: (0.5, float(record.step)))
"""Accuracy and loss with which the first validation stays the best."""
BETTER = property(lambda record: (0.5, -float(record.step)))
"""Accuracy and loss with which each validation is the best so far."""


def _trained(job: TrainingJob, events: EventWriter | None = None) -> TrainResult:
    events = events or EventWriter(job.folder / "events.jsonl")
    try:
        return Training(job, events).run()
    finally:
        events.close()


def _weights(job: TrainingJob) -> Weights:
    """Return the last state of model, average and optimizer, and the best weights."""
    best = load_file(job.folder / "best" / "model.safetensors")
    last = load_file(job.folder / "last.safetensors")
    return last | {f"best.{name}": tensor for name, tensor in best.items()}


def _steps_per_epoch(job: TrainingJob) -> int:
    return Training(job, EventWriter(job.folder / "unused.jsonl")).order.steps_per_epoch


def _same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _figures(result: TrainResult) -> list[dict[str, Any]]:
    """Return the history without what depends on the clock."""
    return [record.model_dump(exclude={"images_per_second"}) for record in result.history]


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a training run in the middle of a step's report."""


class _StoppingWriter(EventWriter):
    """Raises when a step has been done."""

    def __init__(self, file: Path, last_step: int) -> None:
        super().__init__(file)
        self.last_step = last_step

    def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
        super().progress(done, total, unit, **values)
        if done == self.last_step:
            raise _Stop


@pytest.fixture(scope="module")
def reference(
    make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingJob, TrainResult]:
    """Return one finished training with everything random in it; tests must not change it."""
    job = make_job(tmp_path_factory.mktemp("reference"), **RANDOM)
    return job, _trained(job)


def test_the_same_job_gives_the_same_weights(
    reference: tuple[TrainingJob, TrainResult], make_job: MakeJob, tmp_path: Path
) -> None:
    """Twice the same job leads to the same weights, averages and figures to the last bit.

    A third time, what is finished, but not yet reported, is found again with the same weights.
    """
    again = make_job(tmp_path, **RANDOM)
    for _ in range(2):  # as if the process had died before it wrote its result
        result = _trained(again)
        assert result.best_step == reference[1].best_step
        assert _figures(result) == _figures(reference[1])
        assert _same(_weights(again), _weights(reference[0]))


def test_another_seed_gives_other_weights(
    reference: tuple[TrainingJob, TrainResult], make_job: MakeJob, tmp_path: Path
) -> None:
    """The seed decides the weights."""
    other = make_job(tmp_path, **RANDOM, seed=1)
    _trained(other)
    theirs, ours = _weights(reference[0]), _weights(other)
    assert not torch.equal(ours["model.head.weight"], theirs["model.head.weight"])


@pytest.mark.parametrize(("stop_after", "resumed_at"), [(1, None), (3, 2), (4, 3), (5, 4)])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    reference: tuple[TrainingJob, TrainResult],
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int,
    resumed_at: int | None,
) -> None:
    """Stopped in the middle of an epoch or around its end, it resumes to the same bits."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)  # one after each step; epochs have 4
    job = make_job(tmp_path, **RANDOM)
    with pytest.raises(_Stop):
        _trained(job, _StoppingWriter(tmp_path / "events.jsonl", stop_after))
    result = _trained(job)
    events = read_events(tmp_path / "events.jsonl")
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said == ([f"resuming from step {resumed_at}"] if resumed_at else [])
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert _figures(result) == _figures(reference[1])
    assert result.best_step == reference[1].best_step
    assert _same(_weights(job), _weights(reference[0]))


def test_a_training_in_float16_resumes_with_its_scaled_loss(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first updates overflow and are left out; a resumed run has the same bits."""
    monkeypatch.setattr(loss_scale, "_FIRST", 2.0**20)
    monkeypatch.setattr(loss_scale, "_UPDATES", 3)
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    training = {"epochs": 2, "precision": "float16"}
    whole = make_job(tmp_path / "whole", training=training)
    expected = _trained(whole)
    job = make_job(tmp_path, training=training)
    with pytest.raises(_Stop):
        _trained(job, _StoppingWriter(tmp_path / "events.jsonl", 5))
    result = _trained(job)
    assert _figures(result) == _figures(expected)
    assert _same(_weights(job), _weights(whole))
    assert result.precision == "float16"
    progress = json.loads(read_tensors(job.folder / "last.safetensors")[1]["progress"])
    assert progress["loss_scale"]["factor"] < 2.0**20
    assert result.history[-1].train_loss < result.history[0].train_loss


@pytest.mark.parametrize("damage", ["last", "both", "best", "cut"])
def test_a_damaged_checkpoint_is_left_out(
    reference: tuple[TrainingJob, TrainResult],
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    """One changed byte: it resumes from the previous checkpoint, or starts from scratch."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    job = make_job(tmp_path, **RANDOM)
    with pytest.raises(_Stop):
        _trained(job, _StoppingWriter(tmp_path / "events.jsonl", 7))
    files = {
        "last": ["last.safetensors"],
        "both": ["last.safetensors", "previous.safetensors"],
        "best": ["best-4/model.safetensors"],
        "cut": ["last.safetensors"],
    }[damage]
    for name in files:
        content = bytearray((tmp_path / name).read_bytes())
        content[-100] ^= 16
        (tmp_path / name).write_bytes(content[:-1000] if damage == "cut" else content)
    result = _trained(job)
    events = read_events(tmp_path / "events.jsonl")
    [said] = [event["message"] for event in events if event["kind"] == "warning"]
    how = "resuming from step 5" if damage in ("last", "cut") else "starting from the beginning"
    assert said.startswith(f"{how} (last.safetensors or its best weights are damaged)")
    assert _figures(result) == _figures(reference[1])
    assert _same(_weights(job), _weights(reference[0]))
    assert not (tmp_path / "previous.safetensors").exists()


def test_a_resumed_training_remembers_what_came_before(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best weights of before the stop stay the best, and images are counted from the start."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    too_fast = {"learning_rate": 1.0, "warmup_fraction": 0.9}  # the last epoch does harm
    for seed in range(8):  # whether it does depends on the processor too
        whole = make_job(tmp_path / f"whole{seed}", optimizer=too_fast, seed=seed)
        expected = _trained(whole)
        if expected.best_step < expected.steps:
            break
    else:
        pytest.fail("the settings no longer do harm")
    stopped = make_job(tmp_path / "stopped", optimizer=too_fast, seed=seed)
    with pytest.raises(_Stop):
        _trained(stopped, _StoppingWriter(stopped.folder / "events.jsonl", expected.steps))
    events = EventWriter(stopped.folder / "events.jsonl")
    training = Training(stopped, events)
    result = training.run()
    events.close()
    assert result.best_step == expected.best_step
    assert _same(_weights(stopped), _weights(whole))
    images_of_an_epoch = len(training.data.training.rows)
    assert training.state.sums.total_images == 4 * images_of_an_epoch


def test_dropout_and_stochastic_depth_are_in_the_reference(
    reference: tuple[TrainingJob, TrainResult], make_job: MakeJob, tmp_path: Path
) -> None:
    """Without dropout and stochastic depth other weights come out, so the other tests see them."""
    plain = make_job(tmp_path, training=RANDOM["training"])
    _trained(plain)
    ours, theirs = _weights(plain), _weights(reference[0])
    assert not torch.equal(ours["model.head.weight"], theirs["model.head.weight"])


def test_a_time_limit_records_a_plan_that_replays(make_job: MakeJob, tmp_path: Path) -> None:
    """The recorded plan without the time limit leads to the same weights, bit for bit."""
    limit = f"{patient(0.5):.1f}s"
    ramps = {
        "model": {"stochastic_depth": 0.3},
        "training": {"time_limit": limit, "stochastic_depth_ramp": 0.8},
    }
    limited = make_job(tmp_path / "limited", **ramps)
    result = _trained(limited)
    assert result.stopped_because == f"time limit of {limit}"
    assert result.step_plan
    assert result.step_plan[0][:2] == (0, 0.0)
    assert result.step_plan[-1][2] == result.steps
    config = launching.replayable(limited.config, result)
    assert config.training.time_limit is None
    replay = limited.model_copy(update={"config": config, "folder": tmp_path / "replay"})
    again = _trained(replay)
    assert again.steps == result.steps > 2
    assert _figures(again) == _figures(result)
    assert _same(_weights(replay), _weights(limited))


def test_starting_the_data_loader_workers_is_no_training(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen take as long to start as thousands of images; the rate is that of the steps."""
    batches = Training.batches

    def slowly(training: Training) -> Iterator[Batch]:
        time.sleep(0.5)
        yield from batches(training)

    monkeypatch.setattr(Training, "batches", slowly)
    job = make_job(tmp_path, training={"epochs": 1})
    training = Training(job, EventWriter(job.folder / "events.jsonl"))
    result = training.run()
    assert result.seconds > training.state.training_seconds + 0.5
    images = training.state.sums.total_images
    assert result.images_per_second == images / training.state.training_seconds


def test_it_learns_the_photos(make_job: MakeJob, tmp_path: Path) -> None:
    """Stripes in three directions are told apart far better than by chance."""
    job = make_job(
        tmp_path, training={"epochs": 16, "batch_size": 8}, optimizer={"learning_rate": 1e-2}
    )
    result = _trained(job)
    first, last = result.history[0], result.history[-1]
    assert last.train_loss < first.train_loss - 0.2
    assert (last.train_accuracy or 0) > 0.8
    assert (result.best_validation_accuracy or 0) > 0.8


def test_the_best_weights_are_those_of_the_best_validation(
    reference: tuple[TrainingJob, TrainResult],
) -> None:
    """Its step and accuracy are those of the validation that replaced all others."""
    result = reference[1]
    best = result.history[0]
    for number, record in enumerate(result.history[1:], start=2):
        best = record if record.replaces(best, result.history[:number]) else best
    assert (result.best_step, result.best_validation_accuracy) == (
        best.step,
        best.validation_accuracy,
    )
    model, description = load_model(result.best)
    assert description.classes == reference[0].classes
    assert sum(parameter.numel() for parameter in model.parameters()) == result.parameters


def test_a_newer_best_does_not_take_the_place_of_the_checkpoints(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the newer best is not reached again after a stop, the result holds the older one."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    job = make_job(tmp_path, **RANDOM)
    events = _StoppingWriter(tmp_path / "events.jsonl", last_step=1 + _steps_per_epoch(job))
    with pytest.raises(_Stop):
        _trained(job, events)
    [older] = tmp_path.glob("best-*")
    kept = load_file(older / "model.safetensors")
    newer = tmp_path / f"best-{2 * _steps_per_epoch(job)}"
    newer.mkdir()  # as a kill between the next validation and its checkpoint leaves it
    (newer / "model.safetensors").write_bytes(b"newer")
    monkeypatch.setattr(EpochRecord, "compared", WORSE)
    result = _trained(job)
    assert result.best_step == _steps_per_epoch(job)
    assert _same(load_file(result.best / "model.safetensors"), kept)
    assert not list(tmp_path.glob("best-*"))


def test_at_most_two_best_weights_lie_on_the_disk(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's and the newest, however many epochs are better than the one before."""
    monkeypatch.setattr(EpochRecord, "compared", BETTER)
    found: list[int] = []
    training = Training(make_job(tmp_path), EventWriter(tmp_path / "events.jsonl"))

    def counted(*inputs: Any) -> None:
        save_trained(*inputs)
        found.append(len(list(tmp_path.glob("best-*"))))

    monkeypatch.setattr("patchline.pipeline.training.loop.save_trained", counted)
    training.run()
    assert len(found) == 4
    assert max(found) <= 3  # the one that is just written, and those two
    assert [each.name for each in tmp_path.glob("best*")] == ["best"]


@pytest.mark.parametrize("length", [{"epochs": 1}, {"time_limit": "0.001s"}])
def test_a_training_of_one_step_does_one(
    make_job: MakeJob, tmp_path: Path, length: dict[str, Any]
) -> None:
    """Its only step has a learning rate, so the result is not the random start."""
    job = make_job(tmp_path, training={"batch_size": 1000, **length})
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    start = {name: tensor.clone() for name, tensor in training.state.model.state_dict().items()}
    result = training.run()
    assert result.steps == 1
    assert result.history[0].learning_rate > 0.1 * job.config.optimizer.learning_rate
    best = load_file(result.best / "model.safetensors")
    assert not torch.equal(best["head.weight"], start["head.weight"])


def test_the_rate_rises_and_ends_near_zero(
    reference: tuple[TrainingJob, TrainResult],
) -> None:
    """The steps take their learning rate from the schedule, up to the peak and down."""
    rates = [record.learning_rate for record in reference[1].history]
    assert rates == sorted(rates, reverse=True)
    assert 0.0 < rates[-1] < 0.05 * rates[0]


def test_the_events_tell_the_history(reference: tuple[TrainingJob, TrainResult]) -> None:
    """Each epoch writes its metrics once, and the last progress says that all steps are done."""
    job, result = reference
    events = read_events(job.folder / "events.jsonl")
    assert [event["seq"] for event in events] == list(range(len(events)))
    metrics = [event for event in events if event["kind"] == "metrics"]
    assert [event["step"] for event in metrics] == [record.step for record in result.history]
    assert [event["values"]["validation/loss"] for event in metrics] == [
        record.validation_loss for record in result.history
    ]
    last = [event for event in events if event["kind"] == "progress"][-1]
    assert last["done"] == last["total"] == result.steps


def test_weights_that_the_optimizer_averages_have_their_own_batch_statistics(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """Schedule-Free computes its gradients at other weights, whose statistics do not fit."""
    job = make_job(
        tmp_path,
        optimizer={"name": "schedule_free", "schedule": "constant"},
        model={"patch_embedding": {"name": "whitened"}},
        training={"epochs": 1},
    )
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    training.validations = timed = Timed(1e6, 1000, training.validator.images, 8)
    kept = load_model(training.run().best)[0]
    assert len(training.state.history) == 1
    assert timed.preparation_seconds == training.state.batch_norm_seconds > 0
    before = {name: value.clone() for name, value in kept.state_dict().items()}
    measure_batch_norm_often(kept, training.data, job)
    assert any("running_var" in name for name in before)
    assert all(torch.equal(before[name], value) for name, value in kept.state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_training(make_job: MakeJob, tmp_path: Path) -> None:
    """The error names the loss and the step, and no model is left behind as the best."""
    job = make_job(tmp_path)
    broken = job.image.model_copy(update={"std": (0.0, 0.0, 0.0)})
    with pytest.raises(RunError, match=r"The loss became nan at step 1, .*\.learning_rate"):
        _trained(job.model_copy(update={"image": broken}))
    assert not (tmp_path / "best").exists()


def test_preview_rows_show_every_class_first() -> None:
    """Of a few rows, one of each class comes before a second of any."""
    labels = np.array([0, 0, 0, 0, 1, 2, 2, 9])
    rows = np.array([0, 1, 2, 3, 4, 5, 6])
    chosen = training_data.preview_rows(labels, rows, limit=4)
    assert sorted(labels[chosen[:3]]) == [0, 1, 2]
    assert len(set(chosen)) == 4
    assert set(training_data.preview_rows(labels, rows)) == set(rows)


@pytest.mark.parametrize("average", [None, 2])
def test_a_fit_that_stops_at_rungs_ends_where_an_uninterrupted_one_does(
    make_job: MakeJob, tmp_path: Path, average: int | None
) -> None:
    """Stopped after epochs 1 and 2 of 3 and continued from its checkpoint: the same bits."""
    changes = {**RANDOM, "training": {**RANDOM["training"], "epochs": 3, "average_last": average}}
    whole, job = (make_job(tmp_path / name, **changes) for name in ("whole", "rungs"))
    expected = _trained(whole)
    for epochs in (1, 2):
        stopped = _trained(job.model_copy(update={"part": TrainingPart(epochs=epochs)}))
        assert stopped.epochs == epochs
    ended = _trained(job)
    assert ended.step_plan == expected.step_plan
    assert _figures(ended) == _figures(expected)
    assert _same(_weights(job), _weights(whole))
    assert (ended.averaged is None) == (average is None)
    assert ended.averaged == expected.averaged
    assert _same(*(load_file(each.best / "model.safetensors") for each in (ended, expected)))
