"""Training on sets of labels, on what a teacher says, and without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.config import GALLERY_SIZE
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    fit_label_calibration,
    fit_label_thresholds,
)
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.job import TrainingJob, TrainingPart
from patchline.pipeline.training.parts.after_folds import combine_members
from patchline.pipeline.training.pretraining.__main__ import evaluate_objective
from patchline.pipeline.training.pretraining.evaluating import PretrainingJob
from patchline.pipeline.training.recipe.objectives import REST_FILE
from patchline.pipeline.training.trained_model import provenance_of_job
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.trained_jobs import (
    FAVOURITE,
    FURTHER,
    LABELS,
    MAE,
    Make,
    events_of,
    label_set_job,
    opened,
    taught,
    trained,
    with_weights,
)

pytestmark = pytest.mark.usefixtures("few_penalties")


def _map_of(folder: Path, job: TrainingJob) -> float:
    """Return scikit-learn's mAP of saved weights on the validation images."""
    data = open_data(job)
    model = load_model(folder)[0].eval()
    logits_NK = predict_logits(model, data.images, data.validation_rows, job.image)
    return float(average_precision_score(data.truth(data.validation_rows), logits_NK))


def test_the_best_weights_are_those_of_the_reported_map(tmp_path: Path) -> None:
    """It learns, and says so in the record, in the metrics and in the progress."""
    job = label_set_job(tmp_path / "job", training={"epochs": 8}, optimizer={"learning_rate": 5e-3})
    result = trained(job)
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-6)
    assert result.best_validation_map > 0.9
    assert result.best_validation_accuracy is None
    reported = [event["values"] for event in events_of(job, "metrics")]
    assert [each["validation/mAP"] for each in reported] == [
        record.validation_map for record in result.history
    ]
    assert not {"validation/accuracy", "train/accuracy"} & reported[-1].keys()
    progress = [event for event in events_of(job, "progress") if event["unit"] == "step"]
    assert 0 < progress[-1]["mAP"] <= 1


def test_settings_for_one_label_are_refused(tmp_path: Path) -> None:
    """In one sentence, before anything is decoded."""
    with pytest.raises(ConfigError, match=r"training\.loss is cross_entropy, but the images have"):
        label_set_job(tmp_path / "job", training={"loss": "cross_entropy"})


def test_part_of_the_validation_images_is_compared(tmp_path: Path) -> None:
    """With a time limit, the images of every validation decide."""
    training = opened(label_set_job(tmp_path / "job"))
    model, rows = training.state.average.model, training.data.validation_rows
    metrics = training.validator.metrics(model, 20, 8)
    logits_NK = predict_logits(model, training.data.images, rows, training.job.image)
    for name, count in (("validation_map", 20), ("compared_map", 8)):
        expected = average_precision_score(training.data.truth(rows[:count]), logits_NK[:count])
        assert metrics[name] == pytest.approx(expected, abs=1e-6)


def test_a_head_is_a_logistic_regression_of_each_label(tmp_path: Path) -> None:
    """Its C is that of the best mAP, and the saved model has that mAP; a refit says its own."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head"},
    }
    job = with_weights(label_set_job(tmp_path / "head", **changes))
    result = trained(job)
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-4)
    tried = [event["values"] for event in events_of(job, "metrics")][:-1]
    assert max(each["probe/validation_mAP"] for each in tried) > 0.7
    assert "probe/validation_accuracy" not in tried[0]
    refit = job.model_copy(update={"part": TrainingPart(refit=True, regularization=1.0)})
    train(refit, EventWriter(job.folder / "refit.jsonl"))
    values = read_events(job.folder / "refit.jsonl")[-1]["values"]
    assert values.keys() == {"refit/loss", "refit/mAP"}


@pytest.mark.parametrize("trainable", ["head_then_all", "last_blocks"])
def test_the_way_from_the_head_is_chosen_by_the_loss_of_the_labels(
    tmp_path: Path, trainable: str
) -> None:
    """All points have a mAP, and the result is that of the point that is kept."""
    training = {"trainable": trainable, "epochs": 1, "last_blocks": 1}
    changes: dict[str, Any] = {"model": {"init": "x.safetensors"}, "training": training}
    job = with_weights(label_set_job(tmp_path / "job", **changes))
    result = trained(job)
    record = result.fine_tuning
    assert all(each.accuracy is None and 0 < (each.map or 0) <= 1 for each in record.tried)
    assert "(mAP at 0%: " in record.sentence()
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-3)


def test_labels_are_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    """The targets of a batch are the sets of its images, 1 for each label that they have."""
    job = label_set_job(tmp_path / "job")
    data = open_data(job)
    texts = list(manifests.usable(manifests.load(job.manifest_file))["label"])
    rows = data.training.rows[:20]
    for row, target_K in zip(rows, data.training.targets[rows], strict=True):
        present = [label for label, has in zip(LABELS, target_K, strict=True) if has]
        assert texts[row] == "[" + ", ".join(f'"{label}"' for label in present) + "]"
        assert data.class_of(int(row)) == ", ".join(present)


def test_an_ensemble_of_folds_averages_the_calibrated_sigmoids(tmp_path: Path) -> None:
    """Each member is calibrated on its fold; its probabilities there choose the thresholds."""
    jobs = [
        label_set_job(tmp_path / f"fold{fold}", training={"epochs": 2}).model_copy(
            update={"part": TrainingPart(fold=fold, folds=2)}
        )
        for fold in (1, 2)
    ]
    members = tuple(trained(job).best for job in jobs)
    job = label_set_job(tmp_path / "ensemble")
    job = job.model_copy(update={"part": TrainingPart(members=members)})
    result: Any = combine_members(job, EventWriter(tmp_path / "events.jsonl"))
    data = open_data(job)

    def logits(folder: Path, rows: Any) -> Any:
        model, description = load_model(folder)
        return predict_logits(model, data.images, rows, description.image).numpy()

    single, every = [], np.arange(len(data.paths))
    held_out = [open_data(own).validation_rows for own in jobs]
    for fit, member, rows in zip(result.label_calibrations, members, held_out, strict=True):
        expected = fit_label_calibration(logits(member, rows), data.truth(rows))
        assert np.allclose(fit.scales, expected.scales)
        single.append(fit.probabilities(logits(member, every)))
    chosen_on = np.concatenate([each[rows] for each, rows in zip(single, held_out, strict=True)])
    thresholds = fit_label_thresholds(chosen_on, data.truth(np.concatenate(held_out)))
    assert np.allclose(result.thresholds.values, thresholds.values)
    together = LabelCalibration.by_member(result.label_calibrations)
    averaged = together.probabilities(logits(result.weights, every))
    assert np.abs(single[0] - single[1]).max() > 1e-3
    assert np.allclose(averaged, np.mean(single, axis=0), atol=1e-5)


def test_unlabelled_images_are_in_every_epoch(make: Make, tmp_path: Path) -> None:
    """Beside the training images, or those of a fold; never among those to validate on."""
    job = taught(make, tmp_path)
    rows = manifests.usable(manifests.load(job.manifest_file))
    further = np.arange(len(rows), len(rows) + FURTHER)
    for part in (TrainingPart(), TrainingPart(fold=1, folds=3), TrainingPart(refit=True)):
        data = open_data(job.model_copy(update={"part": part}))
        labelled, _ = part.rows(rows, job.config.data.split_seed)
        assert data.training.rows.tolist() == [*labelled, *further]
        assert not set(data.validation_rows) & set(further)
        assert set(data.labels[further]) == {FAVOURITE}
    targets = open_data(job).training.targets
    validation = np.flatnonzero(rows["split"] == "validation")[:1]
    assert targets[further[:1]].argmax() == FAVOURITE
    label = job.classes.index(rows["label"].iloc[validation[0]])
    assert targets[validation].argmax() == label  # the teacher has not seen it


def test_it_learns_what_the_teacher_says(make: Make, tmp_path: Path) -> None:
    """A teacher that sees one class in all unlabelled images is believed."""
    job = taught(make, tmp_path, training={"mixup": 0.2, "cutmix": 1.0})
    model, data = load_model(trained(job).best)[0], open_data(job)
    device, rows = torch.device("cpu"), np.arange(len(data.labels))[-FURTHER:]
    logits = predict_logits(model, data.images, rows, job.image, device=device)
    assert (logits.argmax(1) == FAVOURITE).float().mean() > 0.9


def test_a_student_has_seen_the_unlabelled_images_and_what_its_teacher_has(
    make: Make, tmp_path: Path
) -> None:
    """What a teacher knows of test images, it passes on."""
    job = taught(make, tmp_path)
    rows = manifests.usable(manifests.load(job.manifest_file))
    assert job.unlabelled is not None
    further = manifests.usable(manifests.load(job.unlabelled.manifest_file))
    known = provenance_of_job(job)
    assert known.own.contain(further, trained_only=True).all()
    shares = pd.Series(known.images.contain(rows)).groupby(rows["split"]).mean()
    assert shares.to_dict() == {"train": 1.0, "validation": 1.0, "test": 1.0}
    alone = provenance_of_job(job.model_copy(update={"teacher": None}))
    assert not alone.images.contain(rows[rows["split"] == "test"]).any()


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
        folder=tmp_path,
    )
    events = EventWriter(tmp_path / "events.jsonl")
    found, again = (evaluate_objective(wanted, events) for _ in range(2))
    assert found.losses == again.losses
    assert len(found.losses) == found.images > 3
    mean = sum(found.losses) / found.images
    assert mean == pytest.approx(result.best_validation_loss, rel=0.2)
    assert len(found.pictures) == min(GALLERY_SIZE, found.images)
    for image in found.pictures:
        shapes = {cv2.imread(str(tmp_path / view.file)).shape for view in image.views}  # type: ignore[union-attr]  # None of no picture
        assert (len(image.views), shapes) == (3, {(16, 16, 3)})
