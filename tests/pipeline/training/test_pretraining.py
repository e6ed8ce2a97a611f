"""Training without labels: it learns, resumes to the bit, and its encoder is loaded and tested."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.pretraining.__main__ import evaluate_objective
from patchline.pipeline.pretraining.job import PretrainingJob
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.recipe.objectives import REST_FILE
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob

MAE = {
    "objective": {"name": "mae", "decoder_depth": 1},
    "training": {"epochs": 6},
    "model": {"patch_embedding": {"patch_size": 4}},
}


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a training run in the middle of a step's report."""


class _StoppingWriter(EventWriter):
    def progress(self, done: int, total: int, unit: str, **values: object) -> None:
        super().progress(done, total, unit, **values)  # type: ignore[arg-type]  # as the loop passes them
        if done == 7:
            raise _Stop


def _trained(job: TrainingJob, events: EventWriter | None = None) -> TrainResult:
    return Training(job, events or EventWriter(job.folder / "events.jsonl")).run()


@pytest.fixture(scope="module")
def pretrained(
    make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingJob, TrainResult]:
    """Return a finished pre-training; tests must not change it."""
    job = make_job(tmp_path_factory.mktemp("pretrained"), **MAE)
    return job, _trained(job)


def test_it_learns_without_classes(pretrained: tuple[TrainingJob, TrainResult]) -> None:
    """The loss falls, the best weights are those with the least, and no accuracy is reported."""
    job, result = pretrained
    assert job.classes == ()
    losses = [record.validation_loss for record in result.history]
    assert losses[-1] < losses[0]
    assert result.best_validation_loss == min(losses)
    assert result.best_validation_accuracy is None
    metrics = [e["values"] for e in read_events(job.folder / "events.jsonl") if "values" in e]
    assert metrics
    assert not any("accuracy" in name for values in metrics for name in values)


def test_a_resumed_pretraining_ends_at_the_same_bits(
    pretrained: tuple[TrainingJob, TrainResult],
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Masks, encoder and decoder continue as if nothing had happened."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    job = make_job(tmp_path, **MAE)
    with pytest.raises(_Stop):
        _trained(job, _StoppingWriter(tmp_path / "events.jsonl"))
    result = _trained(job)
    assert result.best_validation_loss == pretrained[1].best_validation_loss
    for name in ("last.safetensors", "best/model.safetensors", f"best/{REST_FILE}"):
        ours, theirs = load_file(job.folder / name), load_file(pretrained[0].folder / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name


def test_the_encoder_is_an_ordinary_model(pretrained: tuple[TrainingJob, TrainResult]) -> None:
    """The saved model is the ViT alone, with one unused output and no classes."""
    job, result = pretrained
    model, description = load_model(result.best)
    assert description.classes == ()
    assert result.parameters == sum(each.numel() for each in model.parameters())
    assert not any("decoder" in name for name in model.state_dict())
    assert any("decoder" in name for name in load_file(result.best / REST_FILE))
    size = (2, job.image.channels, job.image.height, job.image.width)
    assert model(torch.zeros(size)).shape == (2, 1)


def test_the_test_images_are_tested_and_drawn(
    pretrained: tuple[TrainingJob, TrainResult], tmp_path: Path
) -> None:
    """The mean loss is near that of the validation, and each view is a picture."""
    job, result = pretrained
    events = EventWriter(tmp_path / "events.jsonl")
    wanted = PretrainingJob(
        config=job.config,
        trained=result.best,
        manifest_file=job.manifest_file,
        store=job.store,
        image=job.image,
        device="cpu",
        pictures=3,
        folder=tmp_path,
    )
    found, again = (evaluate_objective(wanted, events) for _ in range(2))
    assert found.losses == again.losses
    assert len(found.losses) == found.images > 3
    mean = sum(found.losses) / found.images
    assert mean == pytest.approx(result.best_validation_loss, rel=0.2)
    assert len(found.pictures) == 3
    for image in found.pictures:
        assert len(image.views) == 3
        for view in image.views:
            pixels = cv2.imread(str(tmp_path / view.file))
            assert pixels is not None
            assert pixels.shape[:2] == (job.image.height, job.image.width)
