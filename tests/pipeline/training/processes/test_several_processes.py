"""Several ranks train as one does: the same gradients, exact resume, and none is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.errors import ConfigError, WorkerError
from patchline.pipeline.training.job import TRAINING, ExtendedTraining, TrainingJob, TrainingPart
from patchline.pipeline.training.parts import last_blocks, probe, stored_tokens
from patchline.pipeline.training.parts.fine_tuning import between_both
from patchline.pipeline.training.processes.rank import MODULE as RANK
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import Event, read_events
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from patchline.pipeline.workspace.files.workspace_folder import FEATURES
from tests.patience import until
from tests.pipeline.training.processes.training_ranks import (
    FEATURES_TOGETHER,
    let_ranks_do,
    random_head,
)
from tests.pipeline.training.trained_jobs import (
    Make,
    StoppingWriter,
    Weights,
    events_of,
    from_weights,
    label_set_job,
    opened,
    said,
    same,
    trained,
)

pytestmark = pytest.mark.usefixtures("few_penalties")
SIZE = 3
"""Ranks that are started together; with three, the order of a sum decides its last bits."""
THREE: dict[str, Any] = {"processes": SIZE, "threads": SIZE, "batch_size": 11, "epochs": 1}
"""An odd batch, so the parts differ; the last batch of an epoch is smaller still."""
RANDOM: dict[str, Any] = {
    "data": {"validation_fraction": 0.28},
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
    "training": {**THREE, "epochs": 2, "mixup": 0.2, "initial_image_scale": 0.5},
    "optimizer": {"name": "muon"},
}
NORMALISED = {
    "patch_embedding": {"name": "conv_stem", "norm": "batch"},
    "stochastic_depth": 0.5,
}
JOBS: dict[str, dict[str, Any]] = {
    "gradients-mixup": {
        "training": {**THREE, "mixup": 0.4, "class_balance": "weights", "loss": "bce"}
    },
    "gradients-cutmix": {
        "training": {
            **THREE,
            "cutmix": 1.0,
            "initial_image_scale": 0.5,
            "class_balance": "sampling",
        },
        "record": {"halvings": [0]},
    },
    "whole": RANDOM,
    "stopped": RANDOM,
    "diverged": {"model": NORMALISED, "training": THREE},
    "extending": {
        "model": NORMALISED,
        "training": {**THREE, "epochs": 3},
        "record": {"average_last": 2},
    },
    "masked": {
        "objective": {"name": "mae", "decoder_depth": 1},
        "model": {"patch_embedding": {"patch_size": 4}},
        "training": THREE,
    },
    "timed": {
        "optimizer": {"name": "schedule_free", "schedule": "constant"},
        "training": {**THREE, "epochs": None, "time_limit": "0.3s", "early_stopping": 5},
    },
    "refit": {"training": THREE},
}
Jobs = dict[str, TrainingJob]


@pytest.fixture(scope="module")
def ranks(make_shared: Make) -> Jobs:
    """Return jobs that three ranks have done; all of them process all jobs, to start only once."""
    jobs = {name: make_shared(name, **changes) for name, changes in JOBS.items()}
    folder = jobs["whole"].folder.parent
    sets = {"training": {**THREE, "mixup": 0.4, "class_balance": "weights"}}
    for name in ("gradients-sets", "sets"):
        jobs[name] = label_set_job(folder / name, images=76, **sets)
    part = TrainingPart(refit=True, epochs=0.5)
    jobs["refit"] = jobs["refit"].model_copy(update={"part": part})
    steps = -(-len(open_data(jobs["extending"]).training.rows) // THREE["batch_size"])
    earlier = ExtendedTraining(run_id="earlier", folder=jobs["diverged"].folder, steps=steps)
    jobs["extending"] = jobs["extending"].model_copy(update={"extends": earlier})
    last: dict[str, Any] = {"trainable": "last_blocks", "last_blocks": 1}
    for name, own in {"head": {}, "both": {"trainable": "head_then_all"}, "last": last}.items():
        jobs[name] = from_weights(
            make_shared,
            f"of-{name}/{name}",
            training={**THREE, "trainable": "head", **own},
            augmentation={"name": "light"} if name == "last" else {},
        )
    let_ranks_do(jobs, folder, SIZE)
    return jobs


def _of_rank(job: TrainingJob, rank: int) -> Weights:
    return load_file(job.folder / f"rank-{rank}.safetensors")


def _part(tensors: Weights, prefix: str) -> Weights:
    """Return the tensors whose names begin with a prefix, without it."""
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def _alone(job: TrainingJob, folder: Path, **training: Any) -> TrainingJob:
    """Return a job for this process, in folders of its own."""
    own = job.config.training.model_copy(update={"processes": 1, **training})
    config = job.config.model_copy(update={"training": own})
    (folder / "alone").mkdir(exist_ok=True)
    changes = {"config": config, "folder": folder / "alone", "workspace": folder / "work"}
    return job.model_copy(update=changes)


def _stored(workspace: Path | None) -> Path:
    """Return the only file of features or tokens in a workspace."""
    assert workspace is not None
    [file] = (workspace / FEATURES).rglob("*.npy")
    return file


def _result(job: TrainingJob) -> TrainResult:
    return TrainResult.model_validate_json((job.folder / "result.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["mixup", "cutmix", "sets"])
def test_several_ranks_have_the_gradients_of_one(ranks: Jobs, tmp_path: Path, name: str) -> None:
    """Loss, clipped gradients and correct images are those of one process, for uneven parts too."""
    job = ranks[f"gradients-{name}"]
    one, found = opened(_alone(job, tmp_path)), _of_rank(job, 0)
    for step in (0, one.length.steps_per_epoch - 1):
        one.state.step = step
        expected = one.step.compute_gradients(next(one.batches()))
        of_step = _part(found, f"{step}.")
        assert float(of_step.pop("loss")) == pytest.approx(float(expected.loss), abs=1e-5)
        assert float(of_step.pop("norm")) == pytest.approx(float(expected.norm), abs=1e-5)
        assert int(of_step.pop("correct")) == int(expected.correct)
        grads = {key: each.grad for key, each in one.state.model.named_parameters()}
        assert of_step.keys() == {key for key, each in grads.items() if each is not None}
        for key, gradient in of_step.items():
            torch.testing.assert_close(gradient, grads[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [*(name for name in JOBS if name[:9] != "gradients"), "sets"])
def test_all_ranks_end_with_the_same_bits(ranks: Jobs, name: str) -> None:
    """Weights, averages and moments: every optimizer, objective and part of a batch."""
    first, *others = (_of_rank(ranks[name], rank) for rank in range(SIZE))
    assert len(first) > 10
    assert all(tensor.isfinite().all() for tensor in first.values())
    assert all(same(first, other) for other in others)


def test_resumed_ranks_end_where_uninterrupted_ones_do(ranks: Jobs) -> None:
    """Stopped after three steps and resumed, three ranks reach the same bits, with dropout."""
    whole, stopped = ranks["whole"], ranks["stopped"]
    assert said(stopped)[-1].startswith("resuming from step ")
    assert same(_of_rank(whole, 0), _of_rank(stopped, 0))
    assert same(*(load_file(job.folder / "best/model.safetensors") for job in (whole, stopped)))


def test_another_number_of_ranks_resumes_too(ranks: Jobs, tmp_path: Path) -> None:
    """One process takes up what three have begun; the checkpoint knows nothing of ranks."""
    half = ranks["stopped"].folder.with_name("half-stopped")
    job = _alone(ranks["stopped"], tmp_path).model_copy(update={"folder": half})
    result = trained(job)
    assert said(job)[0].startswith("resuming from step ")
    assert [record.step for record in result.history] == [result.steps // 2, result.steps]


def test_all_ranks_restart_after_a_divergence(ranks: Jobs) -> None:
    """Infinite images in one process take all back to the beginning, and they train to the end."""
    of_batch_norm, message = said(ranks["diverged"])
    assert "Batch norm is not synchronised on a CPU: each of the 3 processes" in of_batch_norm
    assert message.startswith("The loss became nan at step 2")
    assert "restarting from step 0 with the learning rate times 0.5" in message


@pytest.mark.parametrize(
    ("name", "metric", "field"),
    [("whole", "accuracy", "validation_accuracy"), ("sets", "mAP", "validation_map")],
)
def test_ranks_validate_each_image_once(
    ranks: Jobs, tmp_path: Path, name: str, metric: str, field: str
) -> None:
    """Loss and accuracy, or mAP, of the last validation are those that one process computes."""
    job = ranks[name]
    alone = opened(_alone(job, tmp_path))
    model = alone.state.average.model
    model.load_state_dict(_part(_of_rank(job, 0), "average."))
    images = alone.validator.images
    assert images % SIZE, "the parts differ in size"
    expected = alone.validator.metrics(model, images, images)
    reported = events_of(job, "metrics")[-1]["values"]
    assert reported["validation/loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
    assert reported[f"validation/{metric}"] == pytest.approx(expected[field], abs=1e-6)


def test_features_that_ranks_compute_together_are_those_of_one(
    ranks: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are equal, bit for bit, if each process has one thread; so is the fitted head."""
    monkeypatch.setattr(probe, "suitable_batch_size", lambda *_: FEATURES_TOGETHER)
    job = ranks["head"]
    alone = _alone(job, tmp_path, threads=1)
    one, several = trained(alone), _result(job)
    ours, theirs = _stored(job.workspace), _stored(alone.workspace)
    images = len(np.load(ours))
    assert images % (SIZE * FEATURES_TOGETHER), "the last batches are fewer, and smaller"
    assert (ours.name, ours.read_bytes()) == (theirs.name, theirs.read_bytes())
    assert same(*(load_file(each.best / "model.safetensors") for each in (one, several)))
    progress = [each for each in events_of(job, "progress") if each["unit"] == "features"]
    assert progress[-1]["done"] == images


def test_ranks_fit_the_head_before_they_train_all_weights(ranks: Jobs) -> None:
    """Its features are those of a head alone, all ranks start from it, and none fits it again."""
    head, both = ranks["head"], ranks["both"]
    assert _stored(head.workspace).read_bytes() == _stored(both.workspace).read_bytes()
    fitted = [job / "best/model.safetensors" for job in (head.folder, both.folder / "head")]
    assert fitted[0].read_bytes() == fitted[1].read_bytes()
    result = _result(both)
    record = between_both(both, result).fine_tuning
    assert record is not None
    assert record.accuracy_at(0.0) == pytest.approx(_result(head).best_validation_accuracy)
    assert record.accuracy_at(1.0) == pytest.approx(result.best_validation_accuracy)


def test_ranks_share_tokens_and_train_from_them_as_one_does(
    ranks: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are equal, bit for bit, and the weights up to rounding."""
    for module in (probe, last_blocks):
        monkeypatch.setattr(module, "suitable_batch_size", lambda *_: FEATURES_TOGETHER)
    job = ranks["last"]
    alone = _alone(job, tmp_path, threads=1)
    events = StoppingWriter(alone)
    tokens = last_blocks.tokens_together(alone, events, Ranks())
    assert job.workspace is not None
    [ours] = (job.workspace / FEATURES).rglob(tokens.file.name)
    assert ours.read_bytes() == tokens.file.read_bytes()
    assert len(np.load(ours)) % (SIZE * FEATURES_TOGETHER), "the last batches are smaller"
    write_tensors(tokens.head, random_head(alone))
    fit = stored_tokens.fit_alone(alone.model_copy(update={"tokens": tokens}), events)
    together = load_file(job.folder / "trained.safetensors")
    weights = fit.model.state_dict()
    assert together.keys() == weights.keys()
    assert not torch.equal(weights["head.weight"], fit.fitted["head.weight"])
    for name, tensor in weights.items():
        if not name.endswith("query_key_value.bias"):  # where a gradient is rounding noise
            torch.testing.assert_close(together[name], tensor, atol=1e-4, rtol=0)


def test_a_time_limit_ends_all_ranks_at_the_same_step(ranks: Jobs) -> None:
    """The clock is that of rank 0, so all plan the same steps; progress is written by rank 0."""
    last = events_of(ranks["timed"], "progress")[-1]
    assert last["done"] == last["total"] > 1
    events = read_events(ranks["timed"].folder / "events.jsonl")
    assert [event["seq"] for event in events] == list(range(len(events)))


def test_a_rank_that_does_not_answer_is_named(ranks: Jobs) -> None:
    """The first that gives up says so; the others end with it instead of waiting forever."""
    folder = ranks["whole"].folder.parent
    errors = [(folder / f"hanging-{rank}.txt").read_text("utf-8") for rank in range(SIZE - 1)]
    named = [each for each in errors if "A training process has not responded for" in each]
    assert named
    assert all("Connection closed by peer" in each for each in errors if each not in named)


def test_too_small_a_batch_is_an_error(make: Make) -> None:
    """Each process needs two images of a batch."""
    with pytest.raises(ConfigError, match=r"processes is 8.*batch_size is 12\. Lower training"):
        make(training={"processes": 8, "batch_size": 12})


def _ranks(folder: Path) -> list[psutil.Process]:
    """Return the living processes of a training run, but not its worker process."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if RANK in words and str(folder) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it ended while we looked
    return found


@pytest.mark.slow
def test_whatever_is_killed_no_process_is_left_and_the_weights_are_the_same(
    make: Make, tmp_path: Path
) -> None:
    """SIGKILL of one process restarts all by itself; of that which started them, on a resume.

    None of them survives it, and none of their data-loader workers.
    """
    changes = {**RANDOM, "training": {**RANDOM["training"], "processes": 2, "epochs": 30}}
    whole = make("whole", **changes)
    let_ranks_do({"whole": whole}, tmp_path / "ranks", 2)
    killed = make("killed", **{**changes, "data": {**RANDOM["data"], "workers": 1}})
    last = killed.folder / "last.safetensors"
    victims: list[int] = []
    family: list[psutil.Process] = []

    def kill(event: Event) -> None:
        found = _ranks(killed.folder) if last.exists() and not family else []
        if found and not victims:
            victims.append(max(process.pid for process in found))
            os.kill(victims[0], signal.SIGKILL)
        elif found and len(said(killed)) > 1 and event["kind"] == "progress":
            [agent] = {process.ppid() for process in found}
            family.extend(found)
            family.extend(child for each in found for child in each.children(recursive=True))
            os.kill(agent, signal.SIGKILL)

    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        TRAINING.run(killed.folder, killed, kill)
    until(lambda: not any(each.is_running() for each in family), "a process is left")
    assert len(family) >= 4
    again = "A training process ended unexpectedly: all 2 were started again (restart 1 of 3)."
    restarted, resumed = said(killed)
    assert restarted == again
    assert resumed.startswith("resuming from step ")
    killed = make("killed", **changes)  # now without those workers
    TRAINING.run(killed.folder, killed)
    assert same(*(load_file(job.folder / last.name) for job in (whole, killed)))
