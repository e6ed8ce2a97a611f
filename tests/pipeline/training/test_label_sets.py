"""Training on sets of labels: repeatable, chosen by the mAP, and the same for every kind of fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score

from patchline.pipeline.data.splits import folds
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.metrics.label_calibration import LabelCalibration, fit_label_calibration
from patchline.pipeline.metrics.label_thresholds import fit_label_thresholds
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.parts.ensemble_members import combine_members
from patchline.pipeline.training.train_result import EpochRecord, RefitResult, TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.label_set_jobs import LABELS, label_set_job
from tests.pipeline.training.parts.test_probe import events_of, with_weights

pytestmark = pytest.mark.usefixtures("few_penalties")
RANDOM: dict[str, Any] = {
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
    "training": {
        "loss": "asymmetric",
        "mixup": 0.4,
        "cutmix": 1.0,
        "class_weights": "balanced",
        "epochs": 2,
    },
}


def _trained(job: TrainingJob) -> TrainResult:
    events = EventWriter(job.folder / "events.jsonl")
    try:
        result = train(job, events)
    finally:
        events.close()
    assert isinstance(result, TrainResult)
    return result


def _map_of(folder: Path, job: TrainingJob) -> float:
    """Return scikit-learn's mAP of saved weights on the validation images."""
    data = open_data(job)
    model = load_model(folder)[0].eval()
    logits_NK = predict_logits(model, data.images, data.validation_rows, job.image)
    return float(average_precision_score(data.truth(data.validation_rows), logits_NK))


def test_the_best_weights_are_those_of_the_reported_map(tmp_path: Path) -> None:
    """It learns, and says so in the record, in the metrics and in the progress."""
    job = label_set_job(tmp_path / "job", training={"epochs": 8}, optimizer={"learning_rate": 5e-3})
    result = _trained(job)
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-6)
    assert (result.best_validation_map or 0) > 0.9
    assert result.best_validation_accuracy is None
    assert "validation mAP " in result.sentence()
    reported = [event["values"] for event in events_of(job, "metrics")]
    assert [each["validation/mAP"] for each in reported] == [
        record.validation_map for record in result.history
    ]
    assert not {"validation/accuracy", "train/accuracy"} & reported[-1].keys()
    progress = [event for event in events_of(job, "progress") if event["unit"] == "step"]
    assert 0 < progress[-1]["mAP"] <= 1
    assert all("accuracy" not in event for event in progress)


class _Stop(Exception):  # noqa: N818 - stands for a kill, not for an error
    """Ends a fit in the middle."""


def test_a_stopped_fit_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the asymmetric loss, weights of labels, mixed images and dropout."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)
    whole, stopped = (label_set_job(tmp_path / name, **RANDOM) for name in ("whole", "stopped"))
    expected = _trained(whole)

    class Stopping(EventWriter):
        def progress(self, done: int, total: int, unit: str, **values: Any) -> None:
            super().progress(done, total, unit, **values)
            if done == 7:
                raise _Stop

    with pytest.raises(_Stop):
        Training(stopped, Stopping(stopped.folder / "events.jsonl")).run()
    result = _trained(stopped)
    assert any(e["message"].startswith("resuming") for e in events_of(stopped, "warning"))
    shown = [
        [record.model_dump(exclude={"images_per_second"}) for record in each.history]
        for each in (expected, result)
    ]
    assert shown[0] == shown[1]
    one, other = (load_file(job.folder / "last.safetensors") for job in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_map_chooses_among_validations_as_the_accuracy_does() -> None:
    """Within a standard error of the highest, the loss decides; positives tell how large it is."""

    def record(mean: float, loss: float, positives: float) -> EpochRecord:
        return EpochRecord(
            epoch=1,
            step=1,
            train_loss=1,
            train_accuracy=None,
            validation_loss=loss,
            validation_accuracy=None,
            validation_map=mean,
            map_positives=positives,
            validation_images=5000,
            learning_rate=0.1,
            images_per_second=1,
        )

    for positives, replaces in ((40.0, True), (4000.0, False)):
        higher, smoother = record(0.80, 0.5, positives), record(0.77, 0.4, positives)
        assert smoother.replaces(higher, [higher, smoother]) == replaces


def test_part_of_the_validation_images_is_compared(tmp_path: Path) -> None:
    """With a time limit, the images of every validation decide."""
    job = label_set_job(tmp_path / "job")
    training = Training(job, EventWriter(job.folder / "events.jsonl"))
    metrics = training.validator.metrics(training.state.average.model, 20, 8)
    rows = training.data.validation_rows
    logits_NK = predict_logits(training.state.average.model, training.data.images, rows, job.image)
    for name, count in (("validation_map", 20), ("compared_map", 8)):
        truth_NK = training.data.truth(rows[:count])
        assert truth_NK.any(0).all()
        expected = average_precision_score(truth_NK, logits_NK[:count])
        assert metrics[name] == pytest.approx(expected, abs=1e-6)


def test_more_epochs_continue_with_the_best_map(tmp_path: Path) -> None:
    """The best weights of a part of the split are measured again on all of it."""
    first = label_set_job(tmp_path / "first", training={"epochs": 1})
    steps = _trained(first).steps
    extends = ExtendedTraining(run_id="earlier", folder=first.folder, steps=steps)
    job = label_set_job(tmp_path / "more", training={"epochs": 2})
    job = job.model_copy(update={"extends": extends})
    result = _trained(job)
    assert [each.step for each in result.history] == [steps, 2 * steps]
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-6)
    assert load_model(result.best)[1].is_multi_label


def test_the_average_of_the_last_weights_has_a_map(tmp_path: Path) -> None:
    """As with one label it has an accuracy."""
    job = label_set_job(tmp_path / "job", training={"average_last": 2, "epochs": 2})
    result = _trained(job)
    assert result.averaged is not None
    assert result.averaged.map == pytest.approx(_map_of(result.best, job), abs=1e-6)
    assert result.best_validation_map == result.averaged.map
    assert events_of(job, "metrics")[-1]["values"]["averaged/mAP"] == result.averaged.map


def test_labels_that_count_more_than_the_limit_are_named(tmp_path: Path) -> None:
    """A label of one image in a hundred counts 20 times."""
    job = label_set_job(tmp_path / "job", training={"class_weights": "balanced", "epochs": 1})
    data = open_data(job)
    assert data.label_sets_NK is not None
    data.label_sets_NK[:, 0] = 0
    data.label_sets_NK[data.training.rows[0], 0] = 1
    count = len(data.training.rows)
    assert data.note_on_weights().endswith(f"more: bright (1 of {count})")
    assert data.class_weights_K()[0] == 20
    assert data.class_of(int(data.training.rows[0])).startswith("bright")


def test_a_head_is_a_logistic_regression_of_each_label(tmp_path: Path) -> None:
    """Its C is that of the best mAP, and the saved model has that mAP."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head"},
    }
    job = with_weights(label_set_job(tmp_path / "head", **changes), tmp_path)
    result = _trained(job)
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-4)
    tried = [event["values"] for event in events_of(job, "metrics")][:-1]
    assert max(each["probe/validation_mAP"] for each in tried) > 0.7
    assert "probe/validation_accuracy" not in tried[0]
    refit = job.model_copy(update={"part": TrainingPart(refit=True, regularization=1.0)})
    again = train(refit, EventWriter(job.folder / "refit.jsonl"))
    assert isinstance(again, RefitResult)
    values = read_events(job.folder / "refit.jsonl")[-1]["values"]
    assert values.keys() == {"refit/loss", "refit/mAP"}


@pytest.mark.parametrize("trainable", ["head_then_all", "last_blocks"])
def test_the_way_from_the_head_is_chosen_by_the_loss_of_the_labels(
    tmp_path: Path, trainable: str
) -> None:
    """All points have a mAP, and the result is that of the point that is kept."""
    training = {"trainable": trainable, "epochs": 2, "batch_size": 8, "last_blocks": 1}
    changes: dict[str, Any] = {"model": {"init": "x.safetensors"}, "training": training}
    job = with_weights(label_set_job(tmp_path / "job", **changes), tmp_path)
    result = _trained(job)
    record = result.fine_tuning
    assert record is not None
    assert all(each.accuracy is None and 0 < (each.map or 0) <= 1 for each in record.tried)
    assert "(mAP at 0%: " in record.sentence()
    assert result.best_validation_map == pytest.approx(_map_of(result.best, job), abs=1e-3)
    assert record.held_out == (0 if trainable == "head_then_all" else len(_training_rows(job)))


def _training_rows(job: TrainingJob) -> np.ndarray[Any, Any]:
    return open_data(job).training.rows


def test_a_refit_trains_on_all_images(tmp_path: Path) -> None:
    """It reports no accuracy."""
    job = label_set_job(tmp_path / "job", training={"epochs": 1})
    part = TrainingPart(refit=True, epochs=1)
    job = job.model_copy(update={"part": part})
    result = train(job, EventWriter(job.folder / "events.jsonl"))
    assert isinstance(result, RefitResult)
    rows = open_data(job).training.rows
    assert result.images == len(rows) == len(folds.used_rows(_table(job)))
    assert "refit/accuracy" not in events_of(job, "metrics")[-1]["values"]


def _table(job: TrainingJob) -> Any:
    from patchline.pipeline.data.manifests import manifest as manifests

    return manifests.usable(manifests.load(job.manifest_file))


def test_settings_for_one_label_are_refused(tmp_path: Path) -> None:
    """In one sentence, before anything is decoded."""
    with pytest.raises(ConfigError, match=r"training\.loss is cross_entropy, but the images have"):
        label_set_job(tmp_path / "job", training={"loss": "cross_entropy"})


def test_labels_are_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    """The targets of a batch are the sets of its images, 1 for each label that they have."""
    job = label_set_job(tmp_path / "job")
    data = open_data(job)
    texts = list(_table(job)["label"])
    rows = data.training.rows[:20]
    for row, target_K in zip(rows, data.training.targets[rows], strict=True):
        present = [label for label, has in zip(LABELS, target_K, strict=True) if has]
        assert texts[row] == "[" + ", ".join(f'"{label}"' for label in present) + "]"
        assert data.class_of(int(row)) == ", ".join(present)


def test_an_ensemble_of_folds_averages_the_calibrated_sigmoids(tmp_path: Path) -> None:
    """Each member is calibrated on its fold; its probabilities there choose the thresholds."""
    parts = [TrainingPart(fold=fold, folds=2) for fold in (1, 2)]
    jobs = [
        label_set_job(tmp_path / f"fold{part.fold}", training={"epochs": 2}).model_copy(
            update={"part": part}
        )
        for part in parts
    ]
    members = tuple(_trained(job).best for job in jobs)
    part = TrainingPart(members=members)
    job = label_set_job(tmp_path / "ensemble").model_copy(update={"part": part})
    result = combine_members(job, EventWriter(tmp_path / "events.jsonl"))
    assert result.models == 2
    data = open_data(job)

    def logits(folder: Path, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        model, description = load_model(folder)
        return predict_logits(model, data.images, rows, description.image).numpy()

    calibrated, sets = [], []
    for fit, member, own in zip(result.label_calibrations, members, jobs, strict=True):
        held_out = open_data(own).validation_rows
        assert set(held_out).isdisjoint(open_data(own).training.rows)
        expected = fit_label_calibration(logits(member, held_out), data.truth(held_out))
        assert np.allclose(fit.scales, expected.scales)
        calibrated.append(fit.probabilities(logits(member, held_out)))
        sets.append(data.truth(held_out))
    thresholds = fit_label_thresholds(np.concatenate(calibrated), np.concatenate(sets))
    assert result.thresholds is not None
    assert np.allclose(result.thresholds.values, thresholds.values)
    tested = np.arange(len(data.paths))
    single = [
        fit.probabilities(logits(member, tested))
        for fit, member in zip(result.label_calibrations, members, strict=True)
    ]
    together = LabelCalibration.by_member(result.label_calibrations)
    averaged = together.probabilities(logits(result.weights, tested))
    assert np.abs(single[0] - single[1]).max() > 1e-3
    assert np.allclose(averaged, np.mean(single, axis=0), atol=1e-5)
    assert "each model of the ensemble has a scale and a shift" in together.sentence(LABELS)
