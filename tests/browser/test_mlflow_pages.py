"""What a person finds in the MLflow UI after a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from mlflow import MlflowClient

from patchline.pipeline.browsing import saved_views
from patchline.pipeline.tracking import addresses
from patchline.pipeline.tracking.tracked_run import TrackedRun
from tests.browser.chromium import Browser, browser, missing
from tests.browser.mlflow_server import mlflow_server
from tests.conftest import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


class Opened(NamedTuple):
    """The pages of one finished run."""

    window: Browser
    server: str
    run: TrackedRun
    accuracy: str
    """In percent, as the pages write it."""


@pytest.fixture(scope="module")
def opened(finished_run: Run) -> Iterator[Opened]:
    """Open the MLflow UI on a real run."""
    found = MlflowClient(finished_run.tracking_uri).get_run(finished_run.summary["run_id"])
    run = TrackedRun(found.info.run_id, found.info.experiment_id, finished_run.folder)
    accuracy = f"{finished_run.summary['metrics']['test/accuracy']['value']:.1%}"
    with mlflow_server(finished_run.folder / "mlflow.db") as server, browser() as window:
        window.close_assistant(server)
        yield Opened(window, server, run, accuracy)


def test_the_table_of_runs_has_the_columns_that_matter(opened: Opened) -> None:
    """The saved view of the best models names data, model, accuracy and what made the run."""
    path = saved_views.path(opened.run.experiment_id)
    opened.window.size(2600, 900)  # the table draws only the columns that are in sight
    shown = opened.window.open(
        f"{opened.server}/{path}",
        f"photos vit+conv {opened.accuracy}",
        *("Best models", "test accuracy", "test/accuracy", "test/log_loss", "test/ece"),
        *("model.name", "model.patch_embedding.name", "training.epochs", "seed", "train/seconds"),
        *("Created", "Models", "Dataset"),
    )
    assert f"{opened.accuracy} (" in shown
    opened.window.size(1400, 900)


def test_the_menu_offers_every_saved_view(opened: Opened) -> None:
    """Whoever opens the experiment without a link finds the usual questions in its menu."""
    opened.window.open(f"{opened.server}/{addresses.runs_path(opened.run.experiment_id)}", "Views")
    opened.window.press("Views")
    opened.window.assert_shows(*(view.name for view in saved_views.VIEWS))


def test_curves_over_the_epochs_and_image_grids_stand_side_by_side(opened: Opened) -> None:
    """The saved view of curves shows charts over the epochs, and grids with a step slider."""
    path = saved_views.path(opened.run.experiment_id, saved_views.CURVES)
    opened.window.size(1400, 2200)
    shown = opened.window.open(
        f"{opened.server}/{path}",
        *("Curves", "Images", "epoch", "validation/accuracy", "train/loss"),
        *("least certain", "augmentation"),
    )
    assert "Error" not in shown
    opened.window.wait_for("[role=slider]", at_least=2)
    opened.window.wait_for("img[src*=augmentation], img[src^=blob]", at_least=1)
    opened.window.size(1400, 900)


def test_the_page_of_a_run_says_how_good_it_is(opened: Opened) -> None:
    """The run's page has the verdict, and ways to the report and to the model's version."""
    path = addresses.run_path(opened.run)
    opened.window.open(
        f"{opened.server}/{path}",
        f"{opened.accuracy} of",
        *("Registered as photos, version", "Report", "Model version", "All runs, best first"),
    )
    opened.window.follow("Report")
    opened.window.assert_shows("photos: test report", "Least certain")


def test_the_report_is_shown_among_the_artifacts(opened: Opened) -> None:
    """The link to the report opens it inside the run's page, drawn as HTML."""
    opened.window.open(
        f"{opened.server}/{addresses.report_path(opened.run)}",
        *("photos: test report", "test images classified correctly", "Balanced accuracy"),
    )
    assert opened.window.count("iframe") == 1


def test_the_pages_of_the_model_lead_to_data_run_and_code(opened: Opened) -> None:
    """Model and version have descriptions; the version shows aliases, metrics and origin."""
    shown = opened.window.open(
        f"{opened.server}/{addresses.model_path('photos')}",
        *("photos", "Labels an image with one of 3 classes", "challenger", "champion"),
    )
    assert "patchline.history" not in shown
    opened.window.open(
        f"{opened.server}/{addresses.model_path('photos', '1')}",
        f"{opened.accuracy} of",
        *("data version", "Balanced accuracy", "parameters", opened.run.run_id, "champion"),
    )
