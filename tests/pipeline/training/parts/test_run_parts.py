"""Folds and a refit with real processes: killed at any moment, nested in MLflow, never repeated."""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.initial_weights.record import weights_folder
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import TrainingInputs
from patchline.pipeline.training.parts.run_parts import RunParts
from patchline.pipeline.workspace.files.workspace_folder import FEATURES
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import RunRequest
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking import nested_runs, tracked_run
from patchline.pipeline.workspace.tracking.tracking_store import all_runs
from tests.conftest import write_photos
from tests.patience import until
from tests.pipeline.models.probing.tiny_models import image_spec
from tests.pipeline.training.trained_jobs import SETTINGS, keep_weights, trained

_SETTINGS: dict[str, Any] = config_files.merge_settings(
    SETTINGS,
    {"data": {"path": "photos"}, "training": {"epochs": 12, "batch_size": 4, "folds": 2}},
)
_PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.pipeline.training.parts.test_run_parts import train_parts
train_parts(Path(sys.argv[1]))
"""


def train_parts(folder: Path, **training: Any) -> Any:
    """Do the fits of a run of the folder; continue the run that is there."""
    os.chdir(folder)
    workspace = folder / ".patchline"
    config = config_files.validate_config(
        config_files.merge_settings(_SETTINGS, {"training": training})
    )
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


def _opened(config: Any, data: Any, workspace: Path) -> AbstractContextManager[Any]:
    has_runs = any((workspace / "runs").glob("*/request.json"))
    open_runs = all_runs("attributes.status != 'FINISHED'") if has_runs else ()
    if any(nested_runs.PARENT_TAG not in run.data.tags for run in open_runs):
        found = interrupted_runs.find("last", workspace / "runs")
        return tracked_run.continue_run(found.run_id, found.folder, config.flat(), {})
    request = RunRequest(config=config, data_fingerprint=data.fingerprint)
    return tracked_run.open_owned_run(config, workspace / "runs", {}, request.model_dump_json())


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _killed_in_second_fold(folder: Path) -> None:
    """Start the fits in a process of their own; kill it when two folds have reported an epoch."""
    root = str(Path(__file__).resolve().parents[4])
    process = subprocess.Popen([sys.executable, "-c", _PARENT.format(root=root), str(folder)])

    def has_come() -> bool:
        assert process.poll() is None
        files = folder.glob(".patchline/runs/*/folds/*/training/events.jsonl")
        return sum('"metrics"' in file.read_text("utf-8") for file in files) == 2

    until(has_come, "the fold does not begin", seconds=240, pause=0.002)
    process.kill()
    process.wait()


def trained_alone(job_file: Path, folder: Path) -> Any:
    """Do one of the fits again, in this process and without an interruption."""
    job = TrainingJob.model_validate_json(job_file.read_text("utf-8"))
    return trained(job.model_copy(update={"folder": folder}))


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
def test_folds_that_are_killed_end_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second fold: the same weights, one nested run a fold, none trained twice."""
    write_photos(tmp_path / "photos", images=8, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    _killed_in_second_fold(tmp_path)
    run, result, (memory, notes) = train_parts(tmp_path)
    assert memory.recalled == {"fold-1"}
    children = list(all_runs(f"tags.`{nested_runs.PARENT_TAG}` = '{run.run_id}'"))
    assert sorted(child.data.tags[nested_runs.FOLD_TAG] for child in children) == ["1", "2"]
    assert {child.info.status for child in children} == {"FINISHED"}
    for child in children:
        history = MlflowClient().get_metric_history(child.info.run_id, "validation/accuracy")
        assert len({metric.step for metric in history}) == len(history) == 12
    for fold in result.folds.folds:
        alone = trained_alone(fold.best.parent / "job.json", tmp_path / f"fold {fold.fold}")
        assert _digest(alone.best) == _digest(fold.best)
        assert alone.best_validation_accuracy == fold.accuracy
    alone = trained_alone(result.best.parent / "job.json", tmp_path / "refit")
    assert _digest(alone.weights) == _digest(result.best)
    [mean] = MlflowClient().get_metric_history(run.run_id, "folds/accuracy")
    assert mean.value == result.folds.accuracy.value
    assert any("mean of 2 folds (95% t interval" in note for note in notes)


@pytest.mark.usefixtures("own_store")
@pytest.mark.slow
def test_a_refit_reuses_an_ordinary_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part is the same training, and the recorded plan replays to the same weights."""
    write_photos(tmp_path / "photos", images=8, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    first, plain, _ = train_parts(tmp_path, folds=None, epochs=3)
    _, refitted, (memory, _) = train_parts(tmp_path, folds=None, epochs=3, final_model="refit")
    assert memory.reused == {"train": first.run_id}
    assert memory.recalled == set()  # the stage as a whole was not recalled
    assert _digest(refitted.selected) == _digest(plain.best) != _digest(refitted.best)
    assert refitted.refit.epochs == plain.best_step / plain.steps_per_epoch


@pytest.mark.slow
@pytest.mark.usefixtures("own_store")
def test_a_head_is_refitted_with_the_median_regularization_of_its_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fold is a run of its own; the final head has seen all images, and is what is kept."""
    write_photos(tmp_path / "photos", images=12, side=16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    model = build_model(config_files.validate_config(_SETTINGS).model, image_spec(16), 5)
    sha256 = "0" * 64
    keep_weights(weights_folder((tmp_path / ".patchline").resolve(), sha256), model.state_dict())
    monkeypatch.setitem(_SETTINGS["model"], "init", "some.safetensors")
    monkeypatch.setitem(_SETTINGS, "record", {"init_sha256": sha256})
    _, result, (_, notes) = train_parts(tmp_path, trainable="head", folds=2)
    chosen = [each.regularization for each in result.folds.folds]
    assert result.probe.regularization == statistics.median_low(chosen)
    assert result.best == result.refit.weights
    assert any(note.startswith("refit: fitting the head on all") for note in notes)
    assert len(list((tmp_path / ".patchline" / FEATURES).iterdir())) == 1
