"""Training the last blocks of a network from stored tokens, beginning with the fitted head."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from patchline.pipeline.errors import ConfigError, RunError, StorageError
from patchline.pipeline.models.layers.last_blocks import whole_model
from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing import stored_rows
from patchline.pipeline.training import __main__ as worker
from patchline.pipeline.training.job import TrainingJob, TrainingPart
from patchline.pipeline.training.machine import detect_machine
from patchline.pipeline.training.parts import fine_tuning, last_blocks, launching
from patchline.pipeline.training.parts.fine_tuning import SHARES
from patchline.pipeline.training.parts.stored_tokens import LastBlocksTraining, TokenStore
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workspace.files.workspace_folder import FEATURES
from tests.pipeline.models.late_transfers import LateTransfers
from tests.pipeline.training.trained_jobs import (
    Make,
    Stop,
    StoppingWriter,
    Weights,
    from_weights,
    opened,
    said,
    same,
    trained,
)

pytestmark = pytest.mark.usefixtures("few_penalties")
PROJECTION = "blocks.1.attention.projection.weight"


def blocks_job(
    make: Make,
    name: str,
    model: dict[str, Any] | None = None,
    augmentation: str = "light",
    **training: Any,
) -> TrainingJob:
    """Return a job that trains the last of two blocks."""
    own = {"trainable": "last_blocks", "last_blocks": 1, "batch_size": 8, "epochs": 2, **training}
    optimizer = {"learning_rate": 1e-3, "layer_decay": 0.75}
    changes: dict[str, Any] = {
        "optimizer": optimizer,
        "augmentation": {"name": augmentation},
        "model": model or {},
    }
    return from_weights(make, name, training=own, **changes)


def accepting(job: TrainingJob, error: float) -> TrainingJob:
    """Return a job whose plan accepts an error of the head."""
    record = job.config.record.model_copy(update={"accepted_error": error})
    config = job.config.model_copy(update={"record": record})
    return job.model_copy(update={"config": config})


def state_of(folder: Path) -> Weights:
    """Return the weights of a saved model."""
    return load_model(folder)[0].state_dict()


def head_of(job: TrainingJob) -> Weights:
    """Return the weights that the last blocks begin with."""
    return state_of(job.folder / "head" / "best")


def assert_moved_alike(start: Weights, one: Weights, other: Weights, share: float) -> None:
    """Compare two fits from the same start: they differ by a small share of the way."""
    for name, tensor in one.items():
        if name.endswith("query_key_value.bias"):
            continue  # adding to all keys changes nothing, so its gradient is rounding noise
        moved = (tensor - start[name]).norm()
        assert (other[name] - tensor).norm() <= share * moved, name
    assert not torch.equal(one[PROJECTION], start[PROJECTION])


def refit_of(job: TrainingJob, result: Any, folder: Path) -> TrainingJob:
    """Return the job of a refit that goes half of the way."""
    record = job.config.record.model_copy(update={"step_plan": result.step_plan})
    part = TrainingPart(
        refit=True,
        plan_steps_per_epoch=result.steps_per_epoch,
        regularization=result.fine_tuning.regularization,
        share=0.5,
    )
    config = job.config.model_copy(update={"record": record})
    return job.model_copy(update={"part": part, "folder": folder, "config": config})


Done = tuple[TrainingJob, Any]


@pytest.fixture(scope="module")
def done(make_shared: Make) -> Iterator[Done]:
    """Return a job that was done, with pieces and batches that do not depend on the clock.

    Tests must not change its folders.
    """
    job = blocks_job(make_shared, "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_blocks, "suitable_batch_size", lambda *_: 16)
        patch.setattr(stored_rows, "PIECE_SECONDS", 0.0)
        yield job, trained(job)


@pytest.fixture
def _without_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train once, without images that are held out to choose the share."""
    monkeypatch.setattr(last_blocks, "_parts_to_hold_out", lambda *_: [])


def test_the_result_is_a_whole_model_that_says_how_it_was_made(done: Done) -> None:
    """Only the last block, the norm and the head differ from the initial weights."""
    job, result = done
    record, data = result.fine_tuning, open_data(job)
    assert (record.blocks, record.views) == (1, 2)
    assert [each.share for each in record.tried] == list(SHARES)
    assert record.share >= min(record.tried, key=lambda each: each.loss).share
    assert record.share > 0
    assert record.held_out == len(data.training.rows)  # fewer than 50 validation images
    assert record.images == record.held_out + len(data.validation_rows)
    assert record.sentence() in said(job, "note")
    initial, saved = head_of(job), state_of(result.best)
    changed = {name for name in saved if not torch.equal(saved[name], initial[name])}
    assert changed
    assert all(name.startswith(("blocks.1.", "norm.", "head.")) for name in changed)
    assert not (job.folder / "held_out" / "1").exists()


def test_without_time_for_tokens_the_head_is_kept(make: Make, tmp_path: Path) -> None:
    """The recorded settings then train the head alone, with the same weights."""
    job = blocks_job(make, "short", epochs=None, time_limit="0.001s")
    result = trained(job)
    assert (result.fine_tuning, result.probe is None) == (None, False)
    assert fine_tuning.NO_TIME in said(job, "note")
    config = launching.replayable(job.config, result)
    assert config.training.trainable == "head"
    again = trained(job.model_copy(update={"config": config, "folder": tmp_path / "again"}))
    assert same(state_of(again.best), state_of(result.best))


def test_all_weights_need_time_after_the_head(make: Make) -> None:
    """With a millisecond left, the fitted head is the result."""
    own = {"trainable": "head_then_all", "epochs": None, "time_limit": "0.001s"}
    job = from_weights(make, "whole", training=own)
    result = trained(job)
    assert (result.fine_tuning, result.probe is None) == (None, False)
    assert fine_tuning.NO_TIME in said(job, "note")


@pytest.mark.parametrize("trainable", ["last_blocks", "head_then_all"])
def test_a_head_that_is_good_enough_is_kept(make: Make, tmp_path: Path, trainable: str) -> None:
    """Its estimated error decides; the recorded settings then train the head alone."""
    own = {"last_blocks": 1} if trainable == "last_blocks" else {}
    job = from_weights(make, trainable, training={"trainable": trainable, "epochs": 1, **own})
    fitted = trained(accepting(job, 0.999))
    assert (fitted.fine_tuning, fitted.probe is None) == (None, False)
    [why] = [message for message in said(job, "note") if "not be worth its time" in message]
    assert f"validation accuracy of {fitted.best_validation_accuracy:.1%}" in why
    assert why.endswith(f"--training.trainable {trainable} does it")
    config = launching.replayable(accepting(job, 0.999).config, fitted)
    assert config.training.trainable == "head"
    again = trained(job.model_copy(update={"config": config, "folder": tmp_path / "again"}))
    assert same(state_of(again.best), state_of(fitted.best))


@pytest.mark.parametrize(
    ("right", "images", "accepted", "keeps"),
    [
        (1.0, 10, 0.09, True),  # one of twelve
        (1.0, 10, 0.08, False),
        (0.9, 1000, 0.1, False),
        (0.9, 1000, 0.11, True),
        (1.0, 1000, 0.0, False),
        (1.0, 0, 0.4, False),
        (None, 1000, 0.9, False),
    ],
)
def test_an_error_that_is_not_known_is_not_a_small_one(
    done: Done, right: float | None, images: int, accepted: float, keeps: bool
) -> None:
    """The fewer images tell it, the larger it is taken to be."""
    job, result = done
    told = {"validation_accuracy": right, "validation_map": None, "validation_images": images}
    head = result.model_copy(
        update={"history": (result.history[-1].model_copy(update=told),)},
    )
    assert bool(fine_tuning.why_enough(accepting(job, accepted), head)) is keeps


def test_a_second_run_uses_the_tokens_and_reaches_the_same_weights(
    done: Done, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their size is announced once; read while a device computes, they are the same."""
    first, expected = done
    assert first.workspace is not None
    shutil.copytree(first.workspace / FEATURES, tmp_path / FEATURES)
    with monkeypatch.context() as patch:
        patch.delattr(TokenStore, "_tokens")
        job = blocks_job(make, "second")
        result = trained(job)
    assert same(state_of(result.best), state_of(expected.best))
    assert result.fine_tuning == expected.fine_tuning
    [size] = [message for message in said(first, "note") if "tokens of" in message]
    assert size.startswith("tokens of 61 images in 2 views: 0.00038 GB, about ")
    assert not [message for message in said(job, "note") if "tokens of" in message]
    [file] = (tmp_path / FEATURES).rglob("tokens-*.npy")
    monkeypatch.setattr(stored_rows, "Transfers", LateTransfers)  # as those of a GPU
    late = blocks_job(make, "late/job")
    again = last_blocks.tokens_together(late, StoppingWriter(late), Ranks()).file
    assert (again.name, again.read_bytes()) == (file.name, file.read_bytes())


def test_a_killed_run_resumes_to_the_same_weights(
    done: Done, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it computes tokens, and while it trains a fold: no bit differs."""
    job = blocks_job(make, "run")

    def interrupt(owner: Any, name: str, times: int) -> None:
        original, calls = getattr(owner, name), []

        def interrupted(*given: Any) -> Any:
            calls.append(name)
            if len(calls) == times:
                raise Stop
            return original(*given)

        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(Stop):
            trained(job)

    interrupt(TokenStore, "_of_rows", 4)  # two measure how long they take
    interrupt(last_blocks, "_fold_logits", 2)
    resumed = trained(job)
    assert resumed.fine_tuning == done[1].fine_tuning
    assert same(state_of(resumed.best), state_of(done[1].best))


@pytest.mark.usefixtures("_without_choice")
def test_training_from_tokens_is_training_the_frozen_model_from_images(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same seeds, batches and steps reach the same weights, up to the rounding to float16."""
    job = blocks_job(make, "tokens", augmentation="none")
    fits: list[LastBlocksTraining] = []
    original = LastBlocksTraining.train_to_the_end

    def remembered(training: LastBlocksTraining) -> None:
        fits.append(training)
        original(training)

    monkeypatch.setattr(LastBlocksTraining, "train_to_the_end", remembered)
    trained(job)
    [fit] = fits
    every = job.config.training.model_copy(update={"trainable": "all"})
    config = job.config.model_copy(update={"training": every})
    whole = opened(job.model_copy(update={"config": config, "folder": tmp_path / "all"}))
    start = head_of(job)
    for model in (whole.state.model, whole.state.average.model):
        model.load_state_dict(start)
    for name, parameter in whole.state.model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.1.", "norm.", "head.")))
    whole.train_to_the_end()
    by_tokens = whole_model(fit.state.model).state_dict()
    assert_moved_alike(start, whole.state.model.state_dict(), by_tokens, 0.03)
    assert fit.state.step == whole.state.step


@pytest.mark.usefixtures("_without_choice")
@pytest.mark.parametrize(
    ("blocks", "prefixes"), [(0, ("norm.", "head.")), (2, ("blocks.", "norm.", "head."))]
)
def test_no_block_and_all_blocks_can_be_trained(
    make: Make, blocks: int, prefixes: tuple[str, ...]
) -> None:
    """Without a block, the final norm and the head are; with all, the embedding stays as it is."""
    job = blocks_job(make, "edge", {"test_time_flip": True}, last_blocks=blocks, epochs=1)
    saved, initial = state_of(trained(job).best), head_of(job)
    changed = {name for name in saved if not torch.equal(saved[name], initial[name])}
    assert all(name.startswith(prefixes) for name in changed)
    assert any(name.startswith("blocks.0.") for name in changed) == bool(blocks)


def test_a_refit_goes_as_far_on_all_images(done: Done, tmp_path: Path) -> None:
    """It follows the plan of the first fit, with the chosen C and share, and the stored tokens."""
    job, result = done
    refit = trained(refit_of(job, result, tmp_path / "refit"))
    assert refit.images == result.fine_tuning.images
    assert refit.epochs == pytest.approx(2)
    saved, initial = state_of(refit.weights), head_of(job)
    first = PROJECTION.replace("1", "0")
    assert [torch.equal(saved[name], initial[name]) for name in (first, PROJECTION)] == [
        True,
        False,
    ]


def test_a_disk_without_space_is_an_error_before_the_tokens(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how much is missing, and what needs less."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**30))
    with pytest.raises(StorageError, match=r"take 0.0\d+ GB more, but .* Free some"):
        trained(blocks_job(make, "full"))


def test_tokens_beyond_float16_are_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, instead of weights that are not finite."""
    original = VisionTransformer.tokens_after

    def enlarged(*given: Any) -> torch.Tensor:
        return original(*given) * 1e7

    monkeypatch.setattr(VisionTransformer, "tokens_after", enlarged)
    with pytest.raises(RunError, match="beyond float16"):
        trained(blocks_job(make, "large"))


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"folds": 5}, "has folds of its own"),
        ({"mixup": 0.2}, "tokens of whole images"),
        ({"initial_image_scale": 0.5}, "tokens of whole images"),
        ({"compile": True}, "uncompiled"),
        ({"early_stopping": 3}, "to the end of its plan"),
        ({"last_blocks": 5, "device": "auto"}, "last_blocks is 5, but .* is 2. Choose"),
    ],
)
def test_settings_without_effect_are_refused(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    training: dict[str, Any],
    words: str,
) -> None:
    """Each in one sentence with a remedy, before any feature is computed.

    A GPU that is not used is named first.
    """
    machine = detect_machine().model_copy(update={"unusable_gpu": "torch has no kernels for it"})
    monkeypatch.setattr(worker, "detect_machine", lambda: machine)
    with pytest.raises(ConfigError, match=words):
        trained(blocks_job(make, "refused", **training))
    assert not (tmp_path / FEATURES).exists()
    if "device" in training:
        events = (tmp_path / "refused/events.jsonl").read_text("utf-8")
        assert "The GPU is not used: torch has no kernels for it. Install a build" in events
