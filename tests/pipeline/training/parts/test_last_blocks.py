"""Training the last blocks of a network from stored tokens, beginning with the fitted head."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch

from patchline.pipeline.errors import ConfigError, RunError, StorageError, WorkerError
from patchline.pipeline.layers.last_blocks import whole_model
from patchline.pipeline.layers.vision_transformer import VisionTransformer
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.training import __main__ as worker
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.machine import MODULE, detect_machine
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.parts import last_blocks, stored_tokens
from patchline.pipeline.training.parts.interpolation import SHARES
from patchline.pipeline.training.parts.stored_tokens import TokenStore
from patchline.pipeline.training.parts.token_fit import LastBlocksTraining
from patchline.pipeline.training.train_result import RefitResult, TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import Event, EventWriter
from patchline.pipeline.workers.worker_process import run_worker
from tests.pipeline.models.late_transfers import LateTransfers
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.parts.test_probe import events_of, with_weights

pytestmark = pytest.mark.usefixtures("few_penalties")


def blocks_job(
    make_job: MakeJob, folder: Path, name: str, augmentation: str = "light", **training: Any
) -> TrainingJob:
    """Return a job that trains the last of two blocks."""
    own = {"trainable": "last_blocks", "last_blocks": 1, "batch_size": 8, "epochs": 2, **training}
    settings: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": own,
        "optimizer": {"learning_rate": 1e-3, "layer_decay": 0.75},
        "augmentation": {"name": augmentation},
    }
    return with_weights(make_job(folder / name, **settings), folder)


def trained(job: TrainingJob) -> TrainResult:
    """Run a job."""
    result = train(job, EventWriter(job.folder / "events.jsonl"))
    assert isinstance(result, TrainResult)
    return result


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a saved model."""
    return load_model(folder)[0].state_dict()


def assert_same_weights(one: TrainResult, other: TrainResult) -> None:
    """Compare every bit."""
    weights, others = weights_of(one.best), weights_of(other.best)
    assert all(torch.equal(weights[each], others[each]) for each in weights)


class Done(NamedTuple):
    """A job and its result."""

    job: TrainingJob
    result: TrainResult


@pytest.fixture(scope="module")
def done(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """Return a job that was done, with pieces and batches that do not depend on the clock.

    Tests must not change its folders.
    """
    job = blocks_job(make_job, tmp_path_factory.mktemp("last_blocks"), "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_blocks, "suitable_batch_size", lambda *_: 16)
        patch.setattr(stored_tokens, "PIECE_SECONDS", 0.0)
        yield Done(job, trained(job))


def test_the_result_is_a_whole_model_that_says_how_it_was_made(done: Done) -> None:
    """Only the last block, the norm and the head differ from the initial weights."""
    job, result = done
    record = result.fine_tuning
    assert record is not None
    assert (record.blocks, record.views) == (1, 2)
    assert [each.share for each in record.tried] == list(SHARES)
    assert record.share >= min(record.tried, key=lambda each: each.loss).share
    assert record.share > 0
    data = open_data(job)
    assert record.held_out == len(data.training.rows)  # fewer than 50 validation images
    assert record.images == record.held_out + len(data.validation_rows)
    [said] = [each["message"] for each in events_of(job, "note") if " kept" in each["message"]]
    assert said == record.sentence()
    assert "the last block trained" in said
    initial = weights_of(job.folder / "head" / "best")
    saved = weights_of(result.best)
    changed = {name for name in saved if not torch.equal(saved[name], initial[name])}
    assert changed
    assert all(name.startswith(("blocks.1.", "norm.", "head.")) for name in changed)
    model, description = load_model(result.best)
    assert not description.head_only
    logits_NK = predict_logits(model, data.images, data.validation_rows, job.image)
    right_N = logits_NK.argmax(1).numpy() == data.labels[data.validation_rows]
    assert right_N.mean() == pytest.approx(result.best_validation_accuracy)
    assert {"head/validation/accuracy", "validation/accuracy"} <= {
        name for event in events_of(job, "metrics") for name in event["values"]
    }
    assert not (job.folder / "held_out" / "1").exists()


def test_a_second_run_uses_the_tokens_and_reaches_the_same_weights(
    done: Done, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their size is announced once; another number of views has tokens of its own."""
    assert done.job.workspace is not None
    shutil.copytree(done.job.workspace / FEATURES, tmp_path / FEATURES)
    monkeypatch.setattr(TokenStore, "_tokens", _not_again)
    job = blocks_job(make_job, tmp_path, "second")
    result = trained(job)
    assert_same_weights(result, done.result)
    assert result.fine_tuning == done.result.fine_tuning
    [said] = [each["message"] for each in events_of(done.job, "note")
              if "tokens of" in each["message"]]  # fmt: skip
    assert said.startswith("tokens of 65 images in 2 views: 0.00041 GB, about ")
    assert not [each for each in events_of(job, "note") if "tokens of" in each["message"]]
    monkeypatch.undo()
    trained(blocks_job(make_job, tmp_path, "third", token_views=1, epochs=1))
    [folder] = (tmp_path / FEATURES).iterdir()
    kept = {file: file.read_bytes() for file in folder.glob("tokens-*")}
    assert len([file for file in kept if file.suffix == ".npy"]) == 2
    for file in kept:
        file.unlink()
    monkeypatch.setattr(stored_tokens, "Transfers", LateTransfers)  # as those of a GPU
    trained(blocks_job(make_job, tmp_path, "late", epochs=1))
    [again] = folder.glob("tokens-*.npy")
    assert again.read_bytes() == kept[again]


def _not_again(*_: Any) -> Any:
    raise AssertionError("these tokens were computed before")


class _Killed(Exception):  # noqa: N818 - no error, but an interruption
    """Stands for a kill at any moment."""


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["tokens", "step", "fold"])
def test_a_worker_that_is_killed_resumes_to_the_same_weights(
    make_job: MakeJob, tmp_path: Path, unit: str
) -> None:
    """SIGKILL of the process itself; the test below interrupts at all moments, in this process."""
    whole, job = (blocks_job(make_job, tmp_path / name, "run") for name in ("whole", "killed"))
    expected = run_worker(MODULE, whole.folder, whole, TrainResult, lambda _: None)
    groups: list[int] = []

    def kill(event: Event) -> None:
        if event["kind"] == "progress" and event["unit"] == unit and not groups:
            [worker] = [child for child in psutil.Process().children() if MODULE in child.cmdline()]
            groups.append(worker.pid)  # which leads its group
            os.kill(groups[0], signal.SIGKILL)

    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        run_worker(MODULE, job.folder, job, TrainResult, kill)
    resumed = run_worker(MODULE, job.folder, job, TrainResult, lambda _: None)
    assert resumed.fine_tuning == expected.fine_tuning
    assert_same_weights(resumed, expected)


@pytest.mark.parametrize(
    "at",
    [
        "tokens",
        pytest.param("first fit", marks=pytest.mark.slow),
        "a fold",
        pytest.param("the end", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_to_the_same_weights(
    done: Done, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whatever it was doing: nothing that was finished is repeated, and no bit differs."""
    job = blocks_job(make_job, tmp_path, "run")
    places: dict[str, tuple[Any, str, int]] = {
        "tokens": (TokenStore, "_of_rows", 4),  # two measure how long they take
        "first fit": (LastBlocksTraining, "_write_checkpoint", 1),
        "a fold": (last_blocks, "_fold_logits", 2),
        "the end": (last_blocks, "_result", 1),
    }
    owner, name, times = places[at]
    original, calls = getattr(owner, name), []

    def interrupted(*given: Any) -> Any:
        calls.append(name)
        if len(calls) == times:
            if at == "first fit":
                original(*given)
            raise _Killed
        return original(*given)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(_Killed):
        trained(job)
    monkeypatch.setattr(owner, name, original)
    resumed = trained(job)
    assert resumed.fine_tuning == done.result.fine_tuning
    assert_same_weights(resumed, done.result)
    if at in ("first fit", "the end"):
        warnings = [each["message"] for each in events_of(job, "warning")]
        assert any("resuming from step" in each for each in warnings)


def test_training_from_tokens_is_training_the_frozen_model_from_images(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The same seeds, batches and steps reach the same weights, up to the rounding to float16."""
    job = blocks_job(make_job, tmp_path, "tokens", augmentation="none", token_views=1)
    plain = job.config
    fits: list[LastBlocksTraining] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_blocks, "_parts_to_hold_out", lambda *_: [])
        original = LastBlocksTraining.train_to_the_end

        def remembered(training: LastBlocksTraining) -> None:
            fits.append(training)
            original(training)

        patch.setattr(LastBlocksTraining, "train_to_the_end", remembered)
        train(job, EventWriter(job.folder / "events.jsonl"))
    [fit] = fits
    every = plain.training.model_copy(update={"trainable": "all"})
    images = job.model_copy(
        update={"config": plain.model_copy(update={"training": every}), "folder": tmp_path / "all"}
    )
    whole = Training(images, EventWriter(images.folder / "events.jsonl"))
    start = weights_of(job.folder / "head" / "best")
    for model in (whole.state.model, whole.state.average.model):
        model.load_state_dict(start)
    for name, parameter in whole.state.model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.1.", "norm.", "head.")))
    whole.train_to_the_end()
    by_tokens, by_images = whole_model(fit.state.model).state_dict(), whole.state.model.state_dict()
    for name, tensor in by_images.items():
        if name.endswith("query_key_value.bias"):
            continue  # adding to all keys changes nothing, so its gradient is rounding noise
        moved = (tensor - start[name]).norm()
        assert (by_tokens[name] - tensor).norm() <= 0.03 * moved, name
    moved_name = "blocks.1.attention.projection.weight"
    assert not torch.equal(by_images[moved_name], start[moved_name])
    assert fit.state.step == whole.state.step


class Edge(NamedTuple):
    """A number of blocks, and the first parts of the names of what it may change."""

    blocks: int
    prefixes: tuple[str, ...]


@pytest.mark.parametrize("edge", [Edge(0, ("norm.", "head.")),
                                  Edge(2, ("blocks.", "norm.", "head."))])  # fmt: skip
def test_no_block_and_all_blocks_can_be_trained(
    make_job: MakeJob, tmp_path: Path, edge: Edge
) -> None:
    """Without a block, the final norm and the head are; with all, the embedding stays as it is."""
    job = blocks_job(make_job, tmp_path, "edge", last_blocks=edge.blocks, epochs=1)
    result = trained(job)
    initial, saved = weights_of(job.folder / "head" / "best"), weights_of(result.best)
    changed = {name for name in saved if not torch.equal(saved[name], initial[name])}
    assert all(name.startswith(edge.prefixes) for name in changed)
    if edge.blocks:
        assert any(name.startswith("blocks.0.") for name in changed)


def test_a_refit_goes_as_far_on_all_images(done: Done, tmp_path: Path) -> None:
    """It follows the plan of the first fit, with the chosen C and share, and the stored tokens."""
    job, result = done
    record = result.fine_tuning
    assert record is not None
    planned = job.config.record.model_copy(update={"step_plan": result.step_plan})
    part = TrainingPart(
        refit=True,
        plan_steps_per_epoch=result.steps_per_epoch,
        regularization=record.regularization,
        share=0.5,
    )
    again = job.model_copy(
        update={
            "part": part,
            "folder": tmp_path / "refit",
            "config": job.config.model_copy(update={"record": planned}),
        }
    )
    refit = train(again, EventWriter(again.folder / "events.jsonl"))
    assert isinstance(refit, RefitResult)
    assert refit.images == record.images
    assert refit.epochs == pytest.approx(2)
    saved, initial = weights_of(refit.weights), weights_of(job.folder / "head" / "best")
    same = [
        torch.equal(saved[name], initial[name])
        for name in (f"blocks.{block}.attention.projection.weight" for block in (0, 1))
    ]
    assert same == [True, False]
    head_again = again.model_copy(
        update={"part": part.model_copy(update={"share": None}), "folder": tmp_path / "head_again"}
    )
    alone = train(head_again, EventWriter(head_again.folder / "events.jsonl"))
    assert isinstance(alone, RefitResult)
    assert load_model(alone.weights)[1].head_only


def test_a_disk_without_space_is_an_error_before_the_tokens(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how much is missing, and what needs less."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**30))
    with pytest.raises(StorageError, match=r"take 0.0\d+ GB more, but .* training.token_views"):
        trained(blocks_job(make_job, tmp_path, "full"))


def test_tokens_beyond_float16_are_an_error(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, instead of weights that are not finite."""
    job = blocks_job(make_job, tmp_path, "large")

    original = VisionTransformer.tokens_after

    def enlarged(model: VisionTransformer, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
        return original(model, images_BCHW, blocks) * 1e7

    monkeypatch.setattr(VisionTransformer, "tokens_after", enlarged)
    with pytest.raises(RunError, match="beyond float16"):
        trained(job)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"folds": 5}, "has folds of its own"),
        ({"mixup": 0.2}, "tokens of whole images"),
        ({"initial_image_scale": 0.5}, "tokens of whole images"),
        ({"compile": True}, "uncompiled"),
        ({"early_stopping": 3}, "to the end of its plan"),
        ({"average_last": 3}, "with training.trainable last_blocks"),
        ({"last_blocks": 5}, "last_blocks is 5, but .* is 2. Choose"),
    ],
)
def test_settings_without_effect_are_refused(
    make_job: MakeJob, tmp_path: Path, training: dict[str, Any], words: str
) -> None:
    """Each in one sentence with a remedy, before any feature is computed."""
    with pytest.raises(ConfigError, match=words):
        trained(blocks_job(make_job, tmp_path, "refused", **training))
    assert not (tmp_path / FEATURES).exists()


@pytest.mark.parametrize("part", [TrainingPart(), TrainingPart(refit=True, share=0.5)])
def test_a_gpu_that_is_not_used_is_named_first(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: TrainingPart
) -> None:
    """Whatever is trained, and also if it fails later."""
    machine = detect_machine().model_copy(update={"unusable_gpu": "torch has no kernels for it"})
    monkeypatch.setattr(worker, "detect_machine", lambda: machine)
    job = blocks_job(make_job, tmp_path, "refused", last_blocks=5, device="auto")
    job = job.model_copy(update={"part": part})
    with pytest.raises(ConfigError, match="last_blocks is 5"):
        train(job, EventWriter(job.folder / "events.jsonl"))
    [said] = [each["message"] for each in events_of(job, "warning")]
    assert said.startswith("The GPU is not used: torch has no kernels for it. Install a build")


def test_rare_classes_count_as_they_do_elsewhere(make_job: MakeJob, tmp_path: Path) -> None:
    """Balanced sampling draws tokens of rare classes several times, in other views."""
    result = trained(blocks_job(make_job, tmp_path, "balanced", sampling="balanced", epochs=1))
    assert result.fine_tuning is not None
    assert np.isfinite(result.best_validation_loss)


def test_an_augmentation_without_a_view_is_named(make_job: MakeJob, tmp_path: Path) -> None:
    """An image and its mirror image are already two views."""
    job = make_job(
        tmp_path,
        model={"init": "x.safetensors", "test_time_flip": True},
        training={"trainable": "last_blocks", "last_blocks": 1, "epochs": 1},
        augmentation={"name": "light"},
    )
    job = with_weights(job, tmp_path)
    trained(job)
    said = "augmentation.name light has no effect: training.token_views is 2"
    notes = [each["message"] for each in events_of(job, "note")]
    assert [each.startswith(said) for each in notes].count(True) == 1
    config = job.config
    more = config.training.model_copy(update={"token_views": 4})
    assert last_blocks.note_on_views(config, mirrored=True) in notes
    assert not last_blocks.note_on_views(config, mirrored=False)
    assert not last_blocks.note_on_views(
        config.model_copy(update={"training": more}), mirrored=True
    )
