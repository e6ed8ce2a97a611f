"""Training that starts from weights: of the head alone, and of all weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.sealed_files import write_tensors
from patchline.pipeline.initial_weights.record import RECORD_FILE, TENSORS_FILE, InitialWeights
from patchline.pipeline.models.inference import logits_of_batch, predict_logits
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.stored_logits import logits_of, save_logits
from patchline.pipeline.probing import linear_fit
from patchline.pipeline.probing.linear_fit import held_out_folds
from patchline.pipeline.probing.linear_head import linear_head
from patchline.pipeline.run_memory import stage_keys
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.job import StoredTokens, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.parts.launching import replayable
from patchline.pipeline.training.parts.probe import probe
from patchline.pipeline.training.speed.precision import Chooser, Precision
from patchline.pipeline.training.start.initial_model import TABLE_FILE
from patchline.pipeline.training.train_result import RefitResult, TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob

pytestmark = pytest.mark.usefixtures("few_penalties")


def with_weights(job: TrainingJob, folder: Path, *, blind: bool = False) -> TrainingJob:
    """Return the job with initial weights: a random network of another number of classes.

    A blind one has the same features for every image.
    """
    torch.manual_seed(7)
    model = build_model(job.config.model, job.image, 5)
    if blind:
        model.get_parameter("patch_embedding.projection.weight").data.zero_()
    found = InitialWeights(
        reference="/x/some.safetensors",
        kind="file",
        sha256="0" * 64,
        layout="some ViT",
        settings={},
        channels=3,
        image_size=16,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    write_tensors(folder / "weights" / TENSORS_FILE, model.state_dict())
    write_text(folder / "weights" / RECORD_FILE, found.model_dump_json())
    return job.model_copy(update={"workspace": folder, "initial_weights": folder / "weights"})


def events_of(job: TrainingJob, kind: str) -> list[dict[str, Any]]:
    """Return the events of a training run of one kind."""
    found = read_events(job.folder / "events.jsonl")
    return [event for event in found if event["kind"] == kind]


def head_job(make_job: MakeJob, folder: Path, name: str) -> TrainingJob:
    """Return a job that trains the head alone."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head"},
    }
    return with_weights(make_job(folder / name, **changes), folder)


def test_only_the_head_changes_and_it_learns(make_job: MakeJob, tmp_path: Path) -> None:
    """The saved model is the initial one with a new head, which fits the training images."""
    job = head_job(make_job, tmp_path, "first")
    result = probe(job, EventWriter(job.folder / "events.jsonl"))
    model, description = load_model(result.best)
    initial = build_model(job.config.model, job.image, 5)
    saved = model.state_dict()
    for name, tensor in load_file(job.folder.parent / "weights" / TENSORS_FILE).items():
        assert name.startswith("head.") or torch.equal(saved[name], tensor), name
    assert set(saved) == set(initial.state_dict())
    data = open_data(job)
    logits_NK = predict_logits(model, data.images, data.validation_rows, job.image)
    right_N = logits_NK.argmax(1).numpy() == data.labels[data.validation_rows]
    assert np.isclose(right_N.mean(), result.best_validation_accuracy or 0)
    assert (result.history[0].train_accuracy or 0) > 0.6
    assert result.probe is not None
    assert result.probe.images == len(data.images)
    rows, cpu = np.arange(len(data.images)), torch.device("cpu")
    kept_NK = logits_of(result.best, data.images, rows, [cpu])
    (result.best / "logits.npy").unlink()
    computed_NK = logits_of(result.best, data.images, rows, [cpu])
    np.testing.assert_allclose(kept_NK, computed_NK, atol=1e-4)
    assert description.classes == job.classes
    assert description.model.init is None
    assert description.head_only


def test_reported_logits_are_never_those_of_bfloat16_features(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The evaluation computes them again, as the package does; the rounded ones differ."""
    settings = {"trainable": "head", "precision": "bfloat16"}
    job = make_job(tmp_path / "rounded", model={"init": "x.safetensors"}, training=settings)
    job = with_weights(job, tmp_path)
    result = probe(job, EventWriter(job.folder / "events.jsonl"))
    assert not (result.best / "logits.npy").exists()
    model, _ = load_model(result.best)
    data, cpu = open_data(job), torch.device("cpu")
    rows = np.arange(len(data.images))
    expected_NK = predict_logits(model, data.images, rows, job.image).numpy()
    np.testing.assert_array_equal(logits_of(result.best, data.images, rows, [cpu]), expected_NK)
    with torch.inference_mode():
        batch = torch.from_numpy(np.array(data.images[rows]))
        rounded_NK = logits_of_batch(model, batch, job.image, "bfloat16").float().numpy()
    assert np.abs(rounded_NK - expected_NK).max() > 1e-3
    save_logits(tmp_path, expected_NK, precision="float32", device="cuda")  # may be TF32
    assert not (tmp_path / "logits.npy").exists()


def test_features_are_computed_once_until_the_code_changes(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights and images give the same head; a plugin's new code has other features."""
    names = ("first", "second", "changed")
    first, second, changed = (head_job(make_job, tmp_path, name) for name in names)
    second = second.model_copy(update={"config": second.config.model_copy(update={"seed": 5})})
    results = [probe(job, EventWriter(job.folder / "events.jsonl")) for job in (first, second)]
    weights = [load_model(result.best)[0].state_dict() for result in results]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert len(list((tmp_path / FEATURES).iterdir())) == 1
    monkeypatch.setattr(stage_keys, "plugin_code", lambda _: "new")
    probe(changed, EventWriter(changed.folder / "events.jsonl"))
    computed = [
        any("computing the features of" in event["message"] for event in events_of(job, "note"))
        for job in (first, second, changed)
    ]
    assert computed == [True, False, True]
    assert len(list((tmp_path / FEATURES).iterdir())) == 2


def test_only_the_features_of_added_images_are_computed(
    make_job: MakeJob, small_photos: Path, tmp_path: Path
) -> None:
    """As for a folder that grows every day; the network and its normalization stay."""
    shutil.copytree(small_photos, tmp_path / "photos")
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head"},
        "data": {"path": str(tmp_path / "photos"), "mean": [0.5] * 3, "std": [0.2] * 3},
    }
    for day in ("first", "second"):
        job = with_weights(make_job(tmp_path / day, **changes), tmp_path)
        probe(job, EventWriter(job.folder / "events.jsonl"))
        existing = next((tmp_path / "photos").rglob("*.png"))
        Image.new("RGB", (16, 16), "teal").save(existing.with_name("added.png"))
    messages = [event["message"] for event in events_of(job, "note")]
    assert "computing the features of 1 image" in messages


def test_folds_and_the_refit_fit_their_own_images_on_the_same_features(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """Each head is scikit-learn's for its images and C; no feature is computed a second time."""
    parts = {
        "fold": TrainingPart(fold=2, folds=3),
        "refit": TrainingPart(refit=True, plan_steps_per_epoch=1, epochs=1, regularization=0.02),
    }
    first = head_job(make_job, tmp_path, "first")
    probe(first, EventWriter(first.folder / "events.jsonl"))
    [stored] = (tmp_path / FEATURES).iterdir()
    before = {file.name for file in stored.iterdir()}
    features_ND = _features(first)
    for name, part in parts.items():
        job = head_job(make_job, tmp_path, name).model_copy(update={"part": part})
        result = train(job, EventWriter(job.folder / "events.jsonl"))
        if isinstance(result, TrainResult):
            assert result.probe is not None
            folder, used = result.best, result.probe.regularization
        else:
            assert isinstance(result, RefitResult)
            folder, used = result.weights, 0.02
            assert result.images == len(open_data(first).training.rows) + len(
                open_data(first).validation_rows
            )
        data = open_data(job)
        fitted_ND = features_ND[data.training.rows]
        scaler = StandardScaler().fit(fitted_ND)
        reference = LogisticRegression(C=used, tol=1e-9, max_iter=10_000)
        reference.fit(scaler.transform(fitted_ND), data.labels[data.training.rows])
        rows, cpu = np.arange(len(data.images)), torch.device("cpu")
        logits_NK = torch.from_numpy(logits_of(folder, data.images, rows, [cpu]))
        expected_NK = reference.predict_proba(scaler.transform(features_ND))
        np.testing.assert_allclose(logits_NK.softmax(1), expected_NK, atol=2e-3)
        assert not any(
            "computing the features" in each["message"] for each in events_of(job, "note")
        )
    assert {file.name for file in stored.iterdir()} == before
    [metrics] = events_of(job, "metrics")  # no validation after the refit
    assert set(metrics["values"]) == {"refit/loss", "refit/accuracy"}


def _features(job: TrainingJob) -> np.ndarray[Any, Any]:
    """Return the float64 features of all images, computed by the model itself."""
    torch.manual_seed(7)
    model = build_model(job.config.model, job.image, 5).eval()
    data = open_data(job)
    found: list[torch.Tensor] = []
    linear_head(model, 5).register_forward_pre_hook(lambda _, given: found.append(given[0]))
    predict_logits(model, data.images, np.arange(len(data.images)), job.image)
    return torch.cat(found).double().numpy()


def test_the_table_of_initial_weights_is_kept(make_job: MakeJob, tmp_path: Path) -> None:
    """Training all weights begins with them; the run gets the table and a sentence, once."""
    job = with_weights(make_job(tmp_path / "all", training={"epochs": 1}), tmp_path)
    for _ in range(2):
        training = Training(job, EventWriter(job.folder / "events.jsonl"))
    initial = training.state.model.state_dict()
    norm = load_file(job.folder.parent / "weights" / TENSORS_FILE)["norm.weight"]
    assert torch.equal(initial["norm.weight"], norm)
    [artifact] = [event for event in events_of(job, "artifact") if event["name"] == TABLE_FILE]
    assert "norm.weight,used" in Path(artifact["path"]).read_text("utf-8")
    [sentence] = [each for each in events_of(job, "note") if "initial weights" in each["message"]]
    assert "some.safetensors (some ViT)" in sentence["message"]
    assert "used" in sentence["message"]


@pytest.mark.parametrize("blind", [True, False])
def test_all_weights_are_kept_as_far_as_they_are_better(
    make_job: MakeJob, tmp_path: Path, *, blind: bool
) -> None:
    """From features that tell nothing training helps; bad training leaves the head alone."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "optimizer": {"learning_rate": 5e-3 if blind else 0.5, "gradient_clip": None},
        "training": {"trainable": "head_then_all", "epochs": 25 if blind else 2, "batch_size": 8},
    }
    job = with_weights(make_job(tmp_path / "both", **changes), tmp_path, blind=blind)
    result = train(job, EventWriter(job.folder / "events.jsonl"))
    assert isinstance(result, TrainResult)
    record = result.fine_tuning
    assert record is not None
    model, description = load_model(result.best)
    data = open_data(job)
    logits_NK = predict_logits(model, data.images, data.validation_rows, job.image)
    right_N = logits_NK.argmax(1).numpy() == data.labels[data.validation_rows]
    assert (record.share > 0) == blind
    assert description.head_only == record.kept_head == (result.probe is not None)
    assert right_N.mean() == pytest.approx(record.accuracy_at(record.share))
    assert result.best_validation_accuracy == pytest.approx(right_N.mean())
    [said] = [each for each in events_of(job, "note") if " kept" in each["message"]]
    assert said["message"] == record.sentence()
    [of_head] = [each["values"] for each in events_of(job, "metrics")
                 if "head/validation/accuracy" in each["values"]]  # fmt: skip
    assert of_head["head/validation/accuracy"] == pytest.approx(record.accuracy_at(0.0))
    assert "validation/accuracy" not in of_head
    numbers = [event["seq"] for event in read_events(job.folder / "events.jsonl")]
    assert numbers == list(range(len(numbers)))
    again = train(job, EventWriter(job.folder / "events.jsonl"))
    assert isinstance(again, TrainResult)
    assert again.fine_tuning == record


def test_a_repeated_run_fits_the_head_on_features_of_the_same_precision(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps and forward passes are measured apart, so the features may differ from the training."""

    def choose(self: Chooser, _seconds: float = 0.0) -> Precision:
        setting = "bfloat16" if self.is_frozen else "float32"
        return Precision(name=setting if self.setting == "auto" else self.setting, reason="fast")

    monkeypatch.setattr(Chooser, "choose", choose)
    training = {"trainable": "head_then_all", "epochs": 1, "precision": "auto"}
    job = make_job(tmp_path / "both", model={"init": "x.safetensors"}, training=training)
    job = with_weights(job, tmp_path)
    result = train(job, EventWriter(job.folder / "events.jsonl"))
    assert isinstance(result, TrainResult)
    replay = replayable(job.config, result)
    assert replay.training.precision == "float32"
    model = load_model(result.best)[0]
    head = Chooser(replay, job.image, len(job.classes), model, None, is_frozen=True)
    assert head.setting == "bfloat16"


def test_balanced_sampling_weights_the_classes_of_a_head(make_job: MakeJob, tmp_path: Path) -> None:
    """A fit draws no images, so classes count equally by their weights, as with class_weights."""
    plain = head_job(make_job, tmp_path, "plain")
    manifest = manifests.load(plain.manifest_file)
    rows = manifest[(manifest["split"] == "train") & (manifest["label"] == plain.classes[0])].index
    manifest.loc[rows[3:], "split"] = "test"
    file = tmp_path / "uneven.parquet"
    manifests.save(manifest, file)
    weights = []
    for setting in ("none", "sampling", "class_weights"):
        training = plain.config.training.model_copy(update={setting: "balanced"})
        config = (
            plain.config
            if setting == "none"
            else plain.config.model_copy(update={"training": training})
        )
        changes = {"config": config, "manifest_file": file, "folder": tmp_path / setting}
        job = plain.model_copy(update=changes)
        result = probe(job, EventWriter(job.folder / "events.jsonl"))
        weights.append(load_model(result.best)[0].state_dict()["head.weight"])
    assert torch.equal(weights[1], weights[2])
    assert not torch.allclose(weights[0], weights[1], atol=1e-3)


def test_groups_are_not_divided_where_training_images_are_held_out(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where C of a head is chosen, nor where the last blocks are trained twice."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head"},
        "data": {"group_pattern": r"(.)\.png"},  # of all classes
    }
    job = with_weights(make_job(tmp_path / "job", **changes), tmp_path)
    group_N = manifests.usable(manifests.load(job.manifest_file))["group"].to_numpy()
    parts: list[Any] = []

    def seen(*arguments: Any) -> list[Any]:
        parts.extend(held_out_folds(*arguments))
        return parts

    monkeypatch.setattr(linear_fit, "held_out_folds", seen)
    probe(job, EventWriter(job.folder / "events.jsonl"))
    training = open_data(job).training.rows
    divided = [(training[rows], np.delete(training, rows)) for rows in parts]
    file = tmp_path / "tokens.npy"
    np.save(file, np.zeros((2, 1, 3, 4), np.float16))
    for fold in range(2):
        tokens = StoredTokens(file=file, blocks=1, head=file, fold=fold, folds=2)
        data = open_data(job.model_copy(update={"tokens": tokens}))
        divided.append((data.validation_rows, data.training.rows))
    for held_out, fitted in divided:
        assert len(held_out)
        assert not set(group_N[held_out]) & set(group_N[fitted])


def test_features_beyond_the_time_limit_are_announced(make_job: MakeJob, tmp_path: Path) -> None:
    """Before they are computed, with the remedy; a limit that they keep is not mentioned."""
    changes: dict[str, Any] = {
        "model": {"init": "x.safetensors"},
        "training": {"trainable": "head", "time_limit": "0.00001s"},
    }
    job = with_weights(make_job(tmp_path / "short", **changes), tmp_path)
    probe(job, EventWriter(job.folder / "events.jsonl"))
    [said] = events_of(job, "warning")
    assert "time_limit is 0.00001s, but does not include the features" in said["message"]
    assert said["seq"] < events_of(job, "progress")[0]["seq"]
    again = head_job(make_job, tmp_path / "again", "long")
    limited = again.config.training.model_copy(update={"time_limit": "1h"})
    config = again.config.model_copy(update={"training": limited})
    probe(again.model_copy(update={"config": config}), EventWriter(again.folder / "events.jsonl"))
    assert not events_of(again, "warning")
