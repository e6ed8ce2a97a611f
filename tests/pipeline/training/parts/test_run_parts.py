"""Folds and a refit with real processes: killed at any moment, nested in MLflow, never repeated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.sealed_files import write_tensors
from patchline.pipeline.initial_weights.record import (
    RECORD_FILE,
    TENSORS_FILE,
    InitialWeights,
    weights_folder,
)
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.run_memory import interrupted_runs
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.run_memory.interrupted_runs import RunRequest
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.tracking import nested_runs, tracked_run
from patchline.pipeline.tracking.tracking_store import all_runs
from patchline.pipeline.training.parts.launching import TrainingInputs
from patchline.pipeline.training.parts.run_parts import RunParts
from patchline.pipeline.training.train_result import TrainResult
from patchline.plugin_api import ImageSpec
from tests.conftest import write_photos
from tests.patience import patient

_SETTINGS: dict[str, Any] = {
    "name": "photos",
    "data": {"source": "image_folder", "path": "photos", "image_size": 16},
    "model": {"name": "vit", "embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 32},
    "training": {
        "epochs": 12,
        "batch_size": 4,
        "threads": 1,
        "device": "cpu",
        "precision": "float32",
        "folds": 2,
    },
}
_PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.pipeline.training.parts.test_run_parts import train_parts
train_parts(Path(sys.argv[1]))
"""
_SECONDS = patient(240.0)


def train_parts(folder: Path, **training: Any) -> tuple[tracked_run.TrackedRun, TrainResult, Any]:
    """Do the fits of a run of the folder; continue the run that is there."""
    os.chdir(folder)
    workspace = folder / ".patchline"
    config = config_files.validated(config_files.merged(_SETTINGS, {"training": training}))
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    notes: list[str] = []
    memory = StageMemory(workspace)
    with _opened(config, data, workspace) as run:
        memory.enter(run.run_id, run.folder)
        inputs = TrainingInputs(config, data, prepared, run, memory, lambda _: None)
        parts = RunParts(inputs, notes.append)
        return run, parts.train(), (memory, notes)


def _opened(
    config: Any, data: IngestedData, workspace: Path
) -> AbstractContextManager[tracked_run.TrackedRun]:
    open_runs = list(all_runs("attributes.status != 'FINISHED'")) if _has_runs(workspace) else []
    if any(nested_runs.PARENT_TAG not in run.data.tags for run in open_runs):
        found = interrupted_runs.find("last", workspace / "runs")
        return tracked_run.continued_run(found.run_id, found.folder, config.flat(), {})
    request = RunRequest(config=config, data_fingerprint=data.fingerprint)
    return tracked_run.owned_run(config, workspace / "runs", {}, request.model_dump_json())


def _has_runs(workspace: Path) -> bool:
    return any((workspace / "runs").glob("*/request.json"))


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _is_in(part: str, runs: Path) -> bool:
    """Return whether a part has reported an epoch; `fold` is the second one."""
    pattern, least = {"fold": ("*/folds/*/training", 2), "refit": ("*/refit", 1)}[part]
    files = [file for file in runs.glob(f"{pattern}/events.jsonl") if '"metrics"' in _text(file)]
    return len(files) >= least


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _killed_in(part: str, folder: Path) -> None:
    """Start the fits in a process of their own, and kill it in one of the parts."""
    root = str(Path(__file__).resolve().parents[4])
    process = subprocess.Popen([sys.executable, "-c", _PARENT.format(root=root), str(folder)])
    deadline = time.monotonic() + _SECONDS
    while not _is_in(part, folder / ".patchline/runs"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_folds_and_refit_that_are_killed_end_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second fold and in the refit: the same weights, one nested run a fold."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        write_photos(folder / "photos", images=8, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{killed / 'mlflow.db'}")
    _killed_in("fold", killed)
    _killed_in("refit", killed)
    run, result, (memory, _) = train_parts(killed)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{whole / 'mlflow.db'}")
    other, expected, (_, notes) = train_parts(whole)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{killed / 'mlflow.db'}")
    assert _digest(result.best) == _digest(expected.best)
    assert result.folds
    assert expected.folds
    assert [_digest(each.best) for each in result.folds.folds] == [
        _digest(each.best) for each in expected.folds.folds
    ]
    assert result.folds.accuracy == expected.folds.accuracy
    assert memory.recalled == {"fold-1", "fold-2"}  # the refit was interrupted
    children = list(all_runs(f"tags.`{nested_runs.PARENT_TAG}` = '{run.run_id}'"))
    assert sorted(child.data.tags[nested_runs.FOLD_TAG] for child in children) == ["1", "2"]
    assert {child.info.status for child in children} == {"FINISHED"}
    from mlflow import MlflowClient

    for child in children:
        history = MlflowClient().get_metric_history(child.info.run_id, "validation/accuracy")
        assert [metric.step for metric in history] == sorted({metric.step for metric in history})
        assert len(history) == 12
    [mean] = MlflowClient().get_metric_history(run.run_id, "folds/accuracy")
    assert result.folds.accuracy is not None
    assert mean.value == result.folds.accuracy.value
    assert other.run_id != run.run_id
    assert any("mean of 2 folds (95% t interval" in note for note in notes)


@pytest.mark.usefixtures("own_store")
@pytest.mark.slow
def test_a_refit_reuses_an_ordinary_training_and_a_second_one_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part is the same training, and the recorded plan replays to the same weights."""
    write_photos(tmp_path / "photos", images=8, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    first, plain, _ = train_parts(tmp_path, folds=None, epochs=3)
    _, refitted, (memory, _) = train_parts(tmp_path, folds=None, epochs=3, refit=True)
    assert memory.reused == {"train": first.run_id}
    assert memory.recalled == set()  # the stage as a whole was not recalled
    assert refitted.refit
    assert refitted.selected
    assert _digest(refitted.selected) == _digest(plain.best) != _digest(refitted.best)
    assert refitted.refit.epochs == plain.best_step / plain.steps_per_epoch
    _, again, (memory, _) = train_parts(tmp_path, folds=None, epochs=3, refit=True)
    assert memory.recalled == {"train", "refit"}
    assert _digest(again.best) == _digest(refitted.best)


@pytest.mark.slow
def test_a_head_is_refitted_with_the_median_regularization_of_its_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fold is a run of its own; the final head has seen all images, and is what is kept."""
    write_photos(tmp_path / "photos", images=12, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    sha256 = "0" * 64
    own = {"model": {"init": "some.safetensors"}, "record": {"init_sha256": sha256}}
    config = config_files.validated(config_files.merged(_SETTINGS, own))
    torch.manual_seed(7)
    spread = (0.5,) * 3
    image = ImageSpec(channels=3, height=16, width=16, mean=spread, std=spread, resize="crop")
    model = build_model(config.model, image, 5)
    found = InitialWeights(
        reference="/x/some.safetensors",
        kind="file",
        sha256=sha256,
        layout="some ViT",
        settings={},
        channels=3,
        image_size=16,
        mean=spread,
        std=spread,
    )
    folder = weights_folder((tmp_path / ".patchline").resolve(), sha256)
    write_tensors(folder / TENSORS_FILE, model.state_dict())
    write_text(folder / RECORD_FILE, found.model_dump_json())
    monkeypatch.setitem(_SETTINGS, "model", {**_SETTINGS["model"], **own["model"]})
    monkeypatch.setitem(_SETTINGS, "record", own["record"])
    _, result, (_, notes) = train_parts(tmp_path, trainable="head", folds=3)
    assert result.folds
    assert result.probe
    assert result.refit
    chosen = [each.regularization for each in result.folds.folds]
    assert result.probe.regularization == sorted(chosen, key=lambda each: each or 0)[1]
    assert result.best == result.refit.weights
    assert any(note.startswith("refit: fitting the head on all") for note in notes)
    assert len(list((tmp_path / ".patchline" / FEATURES).iterdir())) == 1
