"""The whole flow, as a user runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from patchline.pipeline.tracking.tracked_run import FLOW_RUN_TAG
from tests.conftest import Run, patchline, patchline_here, write_photos


@pytest.fixture
def store(finished_run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an MLflow client of the finished run's store."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished_run.tracking_uri)
    from mlflow import MlflowClient

    return MlflowClient(finished_run.tracking_uri)


def test_the_summary_has_the_promised_shape(finished_run: Run) -> None:
    """`run --json` prints run, version, aliases, seconds by stage, metrics and report."""
    summary = finished_run.summary
    assert summary["status"] == "FINISHED"
    assert (summary["name"], summary["version"]) == ("photos", "1")
    assert summary["aliases"] == ["challenger", "champion"]
    assert set(summary["seconds"]) == {
        "read", "prepare", "train", "evaluate", "package", "register", "promote",
    }  # fmt: skip
    accuracy = summary["metrics"]["test/accuracy"]
    assert set(accuracy) == {"value", "low", "high", "n"}
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert Path(summary["report"]).is_file()


def test_the_model_learned_what_chance_cannot(finished_run: Run) -> None:
    """Three classes of stripes are told apart far better than by guessing."""
    assert finished_run.summary["metrics"]["test/accuracy"]["low"] > 1 / 3


def test_mlflow_ui_finds_the_store_in_the_same_folder(finished_run: Run) -> None:
    """The store is MLflow's own default: mlflow.db and mlruns in the working directory."""
    assert (finished_run.folder / "mlflow.db").is_file()
    assert (finished_run.folder / "mlruns").is_dir()


def test_one_run_records_where_everything_comes_from(finished_run: Run, store: Any) -> None:
    """Config, data version, plugins, packages, hardware and the Prefect run stand on the run."""
    run = store.get_run(finished_run.summary["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["model.name"] == "vit"
    assert run.data.params["model.patch_embedding.patch_size"] == "4"
    tags = run.data.tags
    assert tags["plugin.patch_embedding"].startswith("conv (patchline ")
    assert tags["plugin.data_source"].startswith("image_folder (patchline ")
    assert tags["version.torch"]
    assert tags["hardware.cores"] == str(os.cpu_count())
    assert len(tags[FLOW_RUN_TAG]) == 36
    [logged] = run.inputs.dataset_inputs
    assert logged.dataset.digest == finished_run.summary["data_fingerprint"]


def test_every_epoch_is_logged_exactly_once(finished_run: Run, store: Any) -> None:
    """Twelve epochs give twelve values of each curve, at rising steps."""
    for key in ("train/loss", "validation/accuracy", "learning_rate"):
        history = store.get_metric_history(finished_run.summary["run_id"], key)
        steps = [metric.step for metric in history]
        assert len(steps) == 12
        assert steps == sorted(set(steps))


def test_the_run_holds_preview_report_figures_and_predictions(
    finished_run: Run, store: Any
) -> None:
    """What a person wants to look at is an artifact of the run."""
    run_id = finished_run.summary["run_id"]
    names = {file.path for file in store.list_artifacts(run_id)}
    names |= {file.path for file in store.list_artifacts(run_id, "report")}
    assert names >= {
        "augmentation_preview.png",
        "config.yaml",
        "report/report.html",
        "report/report.json",
        "report/confusion_matrix.png",
        "report/confusion_matrix_normalised.png",
        "report/reliability.png",
        "report/least_certain.png",
        "report/likely_label_errors.png",
        "report/training_curves.png",
        "report/confident_errors.png",
        "report/predictions.parquet",
    }


def test_the_preview_is_logged_before_the_first_step(finished_run: Run) -> None:
    """The augmentation preview precedes all progress and metrics of the training."""
    [file] = (finished_run.folder / ".patchline/runs").glob("*/training/events.jsonl")
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kinds = [event["kind"] for event in events]
    before = events[: min(kinds.index(kind) for kind in ("progress", "metrics") if kind in kinds)]
    assert "augmentation_preview.png" in [event.get("name") for event in before]


def test_metrics_are_linked_to_the_logged_model_and_the_data(finished_run: Run, store: Any) -> None:
    """The logged model can be found by its test accuracy, and knows the data of the figure."""
    experiment = store.get_experiment_by_name("photos")
    [model] = store.search_logged_models(
        [experiment.experiment_id], filter_string="metrics.`test/accuracy` > 0.1"
    )
    [metric] = [metric for metric in model.metrics if metric.key == "test/accuracy"]
    assert metric.value == finished_run.summary["metrics"]["test/accuracy"]["value"]
    assert metric.dataset_digest == finished_run.summary["data_fingerprint"]


def test_the_registered_version_leads_back_to_the_run(finished_run: Run, store: Any) -> None:
    """The version knows its run, its classes and its data; the aliases point at it."""
    version = store.get_model_version_by_alias("photos", "champion")
    assert version.run_id == finished_run.summary["run_id"]
    assert json.loads(version.tags["patchline.classes"]) == ["across", "down", "rising"]
    assert version.tags["patchline.data_fingerprint"] == finished_run.summary["data_fingerprint"]
    report = json.loads(Path(finished_run.summary["report"]).with_suffix(".json").read_text())
    assert version.tags["patchline.test_images"] == report["images_fingerprint"]
    run = store.get_run(version.run_id)
    assert run.data.tags["patchline.test_images"] == report["images_fingerprint"]


def test_models_shows_versions_and_figures(finished_run: Run) -> None:
    """`models --json` has the promised shape."""
    shown = patchline_here("models", "photos", "--json", cwd=finished_run.folder)
    [model] = shown.json["models"]
    [version] = model["versions"]
    assert model["name"] == "photos"
    assert version["aliases"] == ["challenger", "champion"]
    expected = finished_run.summary["metrics"]["test/accuracy"]["value"]
    assert version["metrics"]["test/accuracy"] == expected


def test_predictions_agree_with_the_evaluation(finished_run: Run, tmp_path: Path) -> None:
    """The package gives every test image the probabilities of the evaluation, to 1e-5."""
    [report] = (finished_run.folder / ".patchline/runs").glob("*/report")
    evaluated = pd.read_parquet(report / "predictions.parquet").query("split == 'test'")
    out = tmp_path / "predicted.parquet"
    done = patchline_here("predict", "photos", "photos", "--out", out, cwd=finished_run.folder)
    assert done.code == 0, done.err
    predicted = pd.read_parquet(out).set_index("image")["probabilities"]
    again = np.stack([predicted[f"photos/{path}"] for path in evaluated["path"]])
    assert len(evaluated) == finished_run.summary["metrics"]["test/accuracy"]["n"]
    assert np.abs(again - np.stack(list(evaluated["probabilities"]))).max() <= 1e-5


@pytest.mark.slow  # tests/flows/training/test_resume.py trains twice to the same weights
def test_the_saved_config_gives_the_same_weights(finished_run: Run, tmp_path: Path) -> None:
    """`run --config` on the resolved config of a run trains the same model again, elsewhere."""
    config = Path(finished_run.summary["config"])
    again = patchline("run", "--config", config, "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    assert again.json["data_fingerprint"] == finished_run.summary["data_fingerprint"]
    assert _weights(tmp_path) == _weights(finished_run.folder)
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    assert settings["training"]["precision"] in {"float32", "bfloat16"}  # as measured
    assert settings["training"]["threads"] >= 1
    assert again.json["aliases"] == ["challenger", "champion"]
    assert again.json["promotion"]["promoted"]
    assert "used again" not in again.err


@pytest.mark.slow
def test_other_classes_than_those_of_the_model_are_refused(
    finished_run: Run, tmp_path: Path
) -> None:
    """A version must answer with the classes of the versions before it; the remedy is a name."""
    other = write_photos(tmp_path / "four", classes=4, images=6)
    shutil.copy(finished_run.folder / "mlflow.db", tmp_path)
    refused = patchline("run", other, "--preset", "none", "--name", "photos", cwd=tmp_path)
    assert refused.code == 2
    assert "only here: falling" in refused.err
    assert "--name" in refused.err


def _weights(folder: Path) -> str:
    [file] = (folder / ".patchline/runs").glob("*/training/best/model.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()
