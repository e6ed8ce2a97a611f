"""The pages of a finished run in MLflow."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient
from mlflow.entities import FileInfo
from mlflow.entities import Run as MlflowRun

from tests.conftest import Run


@pytest.fixture
def store(finished_run: Run) -> MlflowClient:
    return MlflowClient(finished_run.tracking_uri)


@pytest.fixture
def run(finished_run: Run, store: MlflowClient) -> MlflowRun:
    return store.get_run(finished_run.summary["run_id"])


def test_the_name_of_a_run_has_data_model_and_accuracy(run: MlflowRun, finished_run: Run) -> None:
    """The accuracy in the name is that of the report."""
    accuracy = finished_run.summary["metrics"]["test/accuracy"]
    assert run.info.run_name == f"photos vit+conv {accuracy['value']:.1%}"
    tag = run.data.tags["test accuracy"]
    low, high = 100 * accuracy["low"], 100 * accuracy["high"]
    assert tag == f"{accuracy['value']:.1%} ({low:.1f} to {high:.1f})"


def test_a_run_describes_its_outcome(run: MlflowRun, finished_run: Run) -> None:
    """The description has the verdict, metrics, origin, and links within the UI."""
    note, summary = run.data.tags["mlflow.note.content"], finished_run.summary
    assert f"Registered as **photos, version {summary['version']}**" in note
    assert f"| data version | `{summary['data_fingerprint']}` |" in note
    inside = f"#/experiments/{run.info.experiment_id}/runs"
    assert f"[Report]({inside}/{run.info.run_id}/artifacts/report/report.html?" in note
    assert f"({inside}?workflowType=machine_learning&viewStateShareKey=patchline-best)" in note


def test_the_version_and_the_model_are_described(
    store: MlflowClient, run: MlflowRun, finished_run: Run
) -> None:
    """The version has its run, data and metrics; the model has its classes."""
    version = store.get_model_version("photos", finished_run.summary["version"])
    text = str(version.description)
    assert run.info.run_id in text
    assert finished_run.summary["data_fingerprint"] in text
    assert "| Accuracy |" in text
    model = store.get_registered_model("photos")
    assert "3 classes: across, down, rising" in str(model.description)


def test_image_grids_have_fixed_keys(store: MlflowClient, run: MlflowRun) -> None:
    """Each run logs the augmentation and the least certain images, one file per step and key."""
    files = [file.path.removeprefix("images/") for file in _images(store, run)]
    pictures = [name for name in files if name.endswith(".png")]
    assert len([name for name in pictures if name.startswith("augmentation")]) == 6
    assert len([name for name in pictures if name.startswith("least certain")]) == 3
    assert run.data.tags["mlflow.loggedImages"] == "True"


def _images(store: MlflowClient, run: MlflowRun) -> list[FileInfo]:
    return list(store.list_artifacts(run.info.run_id, "images"))


def test_the_table_can_be_sorted_by_cost(run: MlflowRun) -> None:
    """Training time and parameters are metrics, so they sort as numbers."""
    assert run.data.metrics["train/seconds"] > 0
    assert run.data.metrics["train/parameters"] > 1000
