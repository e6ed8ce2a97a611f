"""The pages of a finished run in MLflow."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from tests.conftest import Run


@pytest.fixture
def store(finished_run: Run) -> MlflowClient:
    return MlflowClient(finished_run.tracking_uri)


@pytest.fixture
def run(finished_run: Run, store: MlflowClient) -> MlflowRun:
    return store.get_run(finished_run.summary["run_id"])


def test_a_run_says_what_it_is_and_what_came_of_it(
    run: MlflowRun, store: MlflowClient, finished_run: Run
) -> None:
    """Data, model and accuracy stand in its name; verdict, origin and links in its description.

    The version has its run, data and metrics; the model has its classes.
    """
    summary = finished_run.summary
    accuracy, data = summary["metrics"]["test/accuracy"], summary["data_fingerprint"]
    assert run.info.run_name == f"photos vit+conv {accuracy['value']:.1%}"
    low, high = 100 * accuracy["low"], 100 * accuracy["high"]
    assert run.data.tags["test accuracy"] == f"{accuracy['value']:.1%} ({low:.1f} to {high:.1f})"
    inside = f"#/experiments/{run.info.experiment_id}/runs"
    for words in (
        f"Registered as **photos, version {summary['version']}**",
        f"| data version | `{data}` |",
        f"[Report]({inside}/{run.info.run_id}/artifacts/report/report.html?",
        f"({inside}?workflowType=machine_learning&viewStateShareKey=patchline-best)",
    ):
        assert words in run.data.tags["mlflow.note.content"]
    version = store.get_model_version("photos", summary["version"])
    for words in (run.info.run_id, data, "| Accuracy |"):
        assert words in str(version.description)
    model = store.get_registered_model("photos")
    assert "3 classes: across, down, rising" in str(model.description)


def test_a_run_has_image_grids_and_costs(store: MlflowClient, run: MlflowRun) -> None:
    """Each logs the augmentation and the least certain images, one file per step and key.

    Training time and parameters are metrics, so they sort as numbers.
    """
    files = store.list_artifacts(run.info.run_id, "images")
    names = [each.path.removeprefix("images/") for each in files if each.path.endswith(".png")]
    counts = [sum(name.startswith(key) for name in names) for key in ("augment", "least certain")]
    assert counts == [6, 3]
    assert run.data.tags["mlflow.loggedImages"] == "True"
    assert run.data.metrics["train/seconds"] > 0
    assert run.data.metrics["train/parameters"] > 1000
