"""Training that starts from weights: of the head alone, and of all weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing import linear_fit
from patchline.pipeline.models.probing.linear_fit import split_into_folds
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.models.stored_logits import logits_of, save_logits
from patchline.pipeline.training.initial_weights.record import TENSORS_FILE
from patchline.pipeline.training.job import StoredTokens, TrainingJob, TrainingPart
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workspace.run_memory import stage_keys
from tests.pipeline.training.trained_jobs import (
    Make,
    events_of,
    from_weights,
    said,
    trained,
)

pytestmark = pytest.mark.usefixtures("few_penalties")
CPU = torch.device("cpu")
COMPUTING = "computing the features"


@pytest.fixture(scope="module")
def fitted(make_shared: Make) -> tuple[TrainingJob, Any]:
    """Return a job whose head was fitted, and the result; tests must not change its folder."""
    job = from_weights(make_shared, "first")
    return job, trained(job)


def _all_logits(folder: Path, job: TrainingJob) -> Any:
    images = open_data(job).images
    return logits_of(folder, images, np.arange(len(images)), [CPU])


def _accuracy(folder: Path, job: TrainingJob) -> float:
    data = open_data(job)
    logits_NK = predict_logits(load_model(folder)[0], data.images, data.validation_rows, job.image)
    return float((logits_NK.argmax(1).numpy() == data.labels[data.validation_rows]).mean())


def test_only_the_head_changes_and_it_learns(fitted: tuple[TrainingJob, Any]) -> None:
    """The saved model is the initial one with a new head, which fits the training images."""
    job, result = fitted
    model, description = load_model(result.best)
    saved = model.state_dict()
    for name, tensor in load_file(job.folder.parent / "weights" / TENSORS_FILE).items():
        assert name.startswith("head.") or torch.equal(saved[name], tensor), name
    assert _accuracy(result.best, job) == pytest.approx(result.best_validation_accuracy)
    assert result.history[0].train_accuracy > 0.6
    images = open_data(job).images
    assert result.probe.images == len(images)
    computed_NK = predict_logits(model, images, np.arange(len(images)), job.image)
    np.testing.assert_allclose(_all_logits(result.best, job), computed_NK, atol=1e-4)
    assert (description.classes, description.head_only) == (job.classes, True)


def test_reported_logits_are_never_those_of_bfloat16_features(make: Make, tmp_path: Path) -> None:
    """The evaluation computes them again, as the package does; the rounded ones differ."""
    job = from_weights(make, "rounded", training={"precision": "bfloat16"})
    result = trained(job)
    assert not (result.best / "logits.npy").exists()
    model, images = load_model(result.best)[0], open_data(job).images
    rows = np.arange(len(images))
    expected_NK = predict_logits(model, images, rows, job.image).numpy()
    np.testing.assert_array_equal(_all_logits(result.best, job), expected_NK)
    save_logits(tmp_path, expected_NK, precision="float32", device="cuda")  # may be TF32
    assert not (tmp_path / "logits.npy").exists()


def test_features_are_computed_once_until_the_code_changes(
    fitted: tuple[TrainingJob, Any],
    make_shared: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same weights and images give the same head; a plugin's new code has other features."""
    first, result = fitted
    second, changed = (from_weights(make_shared, name, seed=5) for name in ("second", "changed"))
    weights = [load_model(each.best)[0].state_dict() for each in (result, trained(second))]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    monkeypatch.setattr(stage_keys, "plugin_code", lambda _: "new")
    trained(changed)
    computed = [
        any(COMPUTING in message for message in said(job, "note"))
        for job in (first, second, changed)
    ]
    assert computed == [True, False, True]


def test_folds_and_the_refit_fit_their_own_images_on_the_same_features(
    fitted: tuple[TrainingJob, Any], make_shared: Make
) -> None:
    """Each head is scikit-learn's for its images and C; no feature is computed a second time."""
    first, result = fitted
    data, found = open_data(first), list[torch.Tensor]()
    model, rows = load_model(result.best)[0], np.arange(len(data.images))
    linear_head(model, 3).register_forward_pre_hook(lambda _, given: found.append(given[0]))
    predict_logits(model, data.images, rows, first.image)
    features_ND = torch.cat(found).double().numpy()
    refit = TrainingPart(refit=True, plan_steps_per_epoch=1, epochs=1, regularization=0.02)
    for name, part in (("fold", TrainingPart(fold=2, folds=3)), ("refit", refit)):
        job = from_weights(make_shared, name)
        job = job.model_copy(update={"part": part})
        done = trained(job)
        folder, used = (
            (done.weights, 0.02) if part.refit else (done.best, done.probe.regularization)
        )
        rows = open_data(job).training.rows
        scaler = StandardScaler().fit(features_ND[rows])
        reference = LogisticRegression(C=used, tol=1e-9, max_iter=10_000)
        reference.fit(scaler.transform(features_ND[rows]), data.labels[rows])
        logits_NK = torch.from_numpy(_all_logits(folder, job))
        expected_NK = reference.predict_proba(scaler.transform(features_ND))
        np.testing.assert_allclose(logits_NK.softmax(1), expected_NK, atol=2e-3)
        assert not any(COMPUTING in message for message in said(job, "note"))
    assert done.images == len(data.training.rows) + len(data.validation_rows)
    [metrics] = events_of(job, "metrics")  # no validation after the refit
    assert set(metrics["values"]) == {"refit/loss", "refit/accuracy"}


@pytest.mark.parametrize("blind", [True, False])
def test_all_weights_are_kept_as_far_as_they_are_better(make: Make, *, blind: bool) -> None:
    """From features that tell nothing training helps; bad training leaves the head alone."""
    job = from_weights(
        make,
        "both",
        blind=blind,
        optimizer={"learning_rate": 5e-3 if blind else 0.5, "gradient_clip": None},
        training={"trainable": "head_then_all", "epochs": 12 if blind else 2, "batch_size": 8},
    )
    result = trained(job)
    record = result.fine_tuning
    description = load_model(result.best)[1]
    assert (record.share > 0) == blind
    assert description.head_only == record.kept_head == (result.probe is not None)
    accuracy = _accuracy(result.best, job)
    assert accuracy == pytest.approx(record.accuracy_at(record.share))
    assert result.best_validation_accuracy == pytest.approx(accuracy)
    assert record.sentence() in said(job, "note")
    assert trained(job).fine_tuning == record


def test_balanced_sampling_weights_the_classes_of_a_head(make: Make, tmp_path: Path) -> None:
    """A fit draws no images, so classes count equally by their weights."""
    weights = []
    for balance in ("none", "sampling", "weights"):
        job = from_weights(make, balance, training={"class_balance": balance})
        manifest = manifests.load(job.manifest_file)
        used = (manifest["split"] != "test") & (manifest["label"] == job.classes[0])
        manifest.loc[manifest[used].index[3:], "split"] = "test"
        file = tmp_path / "uneven.parquet"
        manifests.save(manifest, file)
        part = TrainingPart(refit=True, regularization=0.02)
        result = trained(job.model_copy(update={"manifest_file": file, "part": part}))
        weights.append(load_model(result.weights)[0].state_dict()["head.weight"])
    assert torch.equal(weights[1], weights[2])
    assert not torch.allclose(weights[0], weights[1], atol=1e-3)


def test_groups_are_not_divided_where_training_images_are_held_out(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where C of a head is chosen, nor where the last blocks are trained twice."""
    data = {"group_pattern": r"(.)\.png"}  # of all classes
    job = from_weights(make, "job", data=data)
    group_N = manifests.usable(manifests.load(job.manifest_file))["group"].to_numpy()
    parts: list[Any] = []

    def seen(*arguments: Any) -> list[Any]:
        parts.extend(split_into_folds(*arguments))
        return parts

    monkeypatch.setattr(linear_fit, "split_into_folds", seen)
    trained(job)
    training = open_data(job).training.rows
    divided = [(training[rows], np.delete(training, rows)) for rows in parts]
    file = tmp_path / "tokens.npy"
    np.save(file, np.zeros((2, 1, 3, 4), np.float16))
    for fold in range(2):
        tokens = StoredTokens(file=file, blocks=1, head=file, fold=fold, folds=2)
        opened_data = open_data(job.model_copy(update={"tokens": tokens}))
        divided.append((opened_data.validation_rows, opened_data.training.rows))
    for held_out, used in divided:
        assert len(held_out)
        assert not set(group_N[held_out]) & set(group_N[used])
