"""Training without labels: it learns, and its encoder is loaded and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.pretraining.__main__ import evaluate_objective
from patchline.pipeline.pretraining.job import PretrainingJob
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.recipe.objectives import REST_FILE
from patchline.pipeline.workers.event_log import EventWriter
from tests.pipeline.training.taught_jobs import MAE
from tests.pipeline.training.trained_jobs import Make, events_of, trained


@pytest.fixture(scope="module")
def pretrained(make_shared: Make) -> tuple[TrainingJob, Any]:
    """Return a finished pre-training; tests must not change it."""
    job = make_shared(**{**MAE, "training": {"epochs": 4}})
    return job, trained(job)


def test_it_learns_an_ordinary_encoder_without_classes(pretrained: tuple[TrainingJob, Any]) -> None:
    """The loss falls, no accuracy is reported, and the saved model is the ViT alone."""
    job, result = pretrained
    losses = [record.validation_loss for record in result.history]
    assert losses[-1] < losses[0]
    assert result.best_validation_loss == min(losses)
    assert result.best_validation_accuracy is None
    metrics = events_of(job, "metrics")
    assert not any("accuracy" in name for event in metrics for name in event["values"])
    model, description = load_model(result.best)
    assert description.classes == job.classes == ()
    assert result.parameters == sum(each.numel() for each in model.parameters())
    assert not any("decoder" in name for name in model.state_dict())
    assert any("decoder" in name for name in load_file(result.best / REST_FILE))
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 1)


def test_the_test_images_are_tested_and_drawn(
    pretrained: tuple[TrainingJob, Any], tmp_path: Path
) -> None:
    """The mean loss is near that of the validation, and each view is a picture."""
    job, result = pretrained
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
    events = EventWriter(tmp_path / "events.jsonl")
    found, again = (evaluate_objective(wanted, events) for _ in range(2))
    assert found.losses == again.losses
    assert len(found.losses) == found.images > 3
    mean = sum(found.losses) / found.images
    assert mean == pytest.approx(result.best_validation_loss, rel=0.2)
    assert len(found.pictures) == 3
    for image in found.pictures:
        shapes = {cv2.imread(str(tmp_path / view.file)).shape for view in image.views}  # type: ignore[union-attr]  # None of no picture
        assert (len(image.views), shapes) == (3, {(16, 16, 3)})
