"""What a person finds in the MLflow UI after a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mlflow import MlflowClient

from patchline.pipeline.browsing import saved_views
from patchline.pipeline.tracking import addresses
from patchline.pipeline.tracking.tracked_run import TrackedRun
from tests.browser.chromium import Browser, browser, missing
from tests.conftest import Run
from tests.mlflow_server import mlflow_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def opened(finished_run: Run) -> Iterator[tuple[Browser, str]]:
    """Return a browser, and the address of the MLflow UI of a real run."""
    with mlflow_server(finished_run.folder / "mlflow.db") as server, browser() as window:
        window.close_assistant(server)
        yield window, server


@pytest.fixture
def run(finished_run: Run) -> TrackedRun:
    """Return that run."""
    found = MlflowClient(finished_run.tracking_uri).get_run(finished_run.summary["run_id"])
    return TrackedRun(found.info.run_id, found.info.experiment_id, finished_run.folder)


@pytest.fixture
def accuracy(finished_run: Run) -> str:
    """Return its accuracy in percent, as the pages write it."""
    return f"{finished_run.summary['metrics']['test/accuracy']['value']:.1%}"


def test_saved_views_show_the_best_models_and_curves(
    opened: tuple[Browser, str], run: TrackedRun, accuracy: str
) -> None:
    """One names data, model, accuracy and what made the run; one has charts and image grids.

    Whoever opens the experiment without a link finds them in its menu.
    """
    window, server = opened
    window.size(2600, 900)  # the table draws only the columns that are in sight
    shown = window.open(
        f"{server}/{saved_views.path(run.experiment_id)}",
        f"photos vit+conv {accuracy}",
        *("Best models", "test accuracy", "test/accuracy", "test/log_loss", "test/ece"),
        *("model.name", "model.patch_embedding.name", "training.epochs", "seed", "train/seconds"),
        *("Created", "Models", "Dataset"),
    )
    assert f"{accuracy} (" in shown
    window.size(1400, 900)
    window.open(f"{server}/{addresses.runs_path(run.experiment_id)}", "Views")
    window.press("Views")
    window.assert_shows(*(view.name for view in saved_views.VIEWS))
    window.size(1400, 2200)
    shown = window.open(
        f"{server}/{saved_views.path(run.experiment_id, saved_views.CURVES)}",
        *("Curves", "Images", "epoch", "validation/accuracy", "train/loss"),
        *("least certain", "augmentation"),
    )
    assert "Error" not in shown
    window.wait_for("[role=slider]", at_least=2)
    window.wait_for("img[src*=augmentation], img[src^=blob]", at_least=1)
    window.size(1400, 900)


def test_the_pages_of_run_and_model_lead_to_each_other(
    opened: tuple[Browser, str], run: TrackedRun, accuracy: str
) -> None:
    """The run's page has the verdict and the way to the report, drawn as HTML inside the page.

    Model and version have descriptions; the version shows aliases, metrics and origin.
    """
    window, server = opened
    window.open(
        f"{server}/{addresses.run_path(run)}",
        f"{accuracy} of",
        *("Registered as photos, version", "Report", "Model version", "All runs, best first"),
    )
    window.follow("Report")
    report = ("photos: test report", "Least certain", "test images classified correctly")
    window.assert_shows(*report)
    assert window.count("iframe") == 1
    shown = window.open(
        f"{server}/{addresses.model_path('photos')}",
        *("photos", "Labels an image with one of 3 classes", "challenger", "champion"),
    )
    assert "patchline.history" not in shown
    window.open(
        f"{server}/{addresses.model_path('photos', '1')}",
        f"{accuracy} of",
        *("data version", "Balanced accuracy", "parameters", run.run_id, "champion"),
    )
