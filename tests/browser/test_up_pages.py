"""What a person finds in both UIs while `patchline up` runs: a run, a schedule, a request."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient

from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from tests.browser.chromium import Browser, browser, missing
from tests.conftest import Finished, Run
from tests.flows.approval.approval_parts import champion, versions
from tests.flows.services.local_servers import Servers, proof, serving
from tests.patience import patient

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


class Opened(NamedTuple):
    """The pages of a folder with one run and one schedule."""

    window: Browser
    servers: Servers
    prefect: str
    mlflow: str
    run: TrackedRun
    accuracy: str
    """Of the run, in percent, as the pages write it."""

    def ask(self, path: str, question: dict[str, Any]) -> Any:
        """Post a filter to Prefect and return its answer."""
        request = urllib.request.Request(
            f"{self.prefect}/api/{path}",
            data=json.dumps(question).encode(),
            headers={"content-type": "application/json", **proof(self.servers.folder)},
        )
        with urllib.request.urlopen(request, timeout=patient(60)) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def opened(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Start the servers of a copy of a finished run, make a schedule, and open a browser."""
    folder = tmp_path_factory.mktemp("up_pages") / "workspace"
    shutil.copytree(finished_run.folder, folder)
    (folder / "prefect.db").rename(folder / ".patchline/prefect.db")
    [config] = folder.glob(".patchline/runs/*/config.yaml")
    found = MlflowClient(finished_run.tracking_uri).get_run(finished_run.summary["run_id"])
    run = TrackedRun(found.info.run_id, found.info.experiment_id, folder)
    accuracy = f"{finished_run.summary['metrics']['test/accuracy']['value']:.1%}"

    def ok(done: Finished) -> Finished:
        assert done.code == 0, done.err
        return done

    with serving(folder) as servers, browser(1400, 1100) as window:
        times = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
        ok(servers.run("schedule", "create", "nightly", *times, "--config", str(config)))
        up = ok(servers.up()).json
        prefect, mlflow = (up[key].rstrip("/") for key in ("prefect_url", "mlflow_url"))
        window.sign_in(up["prefect_login_url"])
        window.close_assistant(mlflow)
        yield Opened(window, servers, prefect, mlflow, run, accuracy)


def test_the_flow_run_tells_its_stages_its_log_and_its_progress(opened: Opened) -> None:
    """The page of the flow run is named after data, model and accuracy, and has the epochs' log.

    Its progress ends at 100% with the last epoch.
    """
    window = opened.window
    tag = {"tags": {"all_": [f"mlflow:{opened.run.run_id}"]}}
    flow_run = str(opened.ask("flow_runs/filter", {"flow_runs": tag})[0]["id"])
    page = f"{opened.prefect}/v2/runs/flow-run/{flow_run}"
    window.open(f"{page}?tab=Logs")
    window.assert_shows(
        f"photos vit+conv {opened.accuracy}",
        *("Completed", "7 Task runs", "Train and register", "Reading the data"),
        *("epoch 1: validation accuracy", "Training vit with conv for 12 epochs"),
    )
    window.open(f"{page}?tab=TaskRuns")
    window.assert_shows(
        *("Read photos", "Decode 120 images", "Train vit with conv for 12 epochs"),
        *("Evaluate on", "Package the model", "Register in photos", "Assign aliases of photos"),
    )
    window.open(f"{page}?tab=Artifacts")
    window.assert_shows("summary", "test-metrics", "mlflow-run")
    found = {
        key: opened.ask("artifacts/filter", {"artifacts": {"key": {"any_": [key]}}})[0]
        for key in ("progress", "summary")
    }
    assert float(found["progress"]["data"]) == 100
    assert "epoch 12/12" in found["progress"]["description"]
    window.open(f"{opened.prefect}/v2/artifacts/artifact/{found['summary']['id']}")
    window.assert_shows(
        "test images classified correctly", "Registered as photos, version 1", "ROC AUC"
    )


def test_a_schedule_is_a_deployment_with_a_form(opened: Opened) -> None:
    """The deployment names its times; its form has the settings with their help texts."""
    named = {"deployments": {"name": {"like_": "nightly"}}}
    [deployment] = opened.ask("deployments/filter", named)
    page = f"{opened.prefect}/v2/deployments/deployment/{deployment['id']}"
    opened.window.open(page, "nightly", "Train and register", "02:00 AM")
    opened.window.open(f"{page}/run", "training", "Passes over the training split")


def test_saved_views_show_the_best_models_and_curves(opened: Opened) -> None:
    """One names data, model, accuracy and what made the run; one has charts and image grids.

    Whoever opens the experiment without a link finds them in its menu.
    """
    window, server, run = opened.window, opened.mlflow, opened.run
    window.size(2600, 900)  # the table draws only the columns that are in sight
    shown = window.open(
        f"{server}/{saved_views.path(run.experiment_id)}",
        f"photos vit+conv {opened.accuracy}",
        *("Best models", "test accuracy", "test/accuracy", "test/log_loss", "test/ece"),
        *("model.name", "model.patch_embedding.name", "training.epochs", "seed", "train/seconds"),
        *("Created", "Models", "Dataset"),
    )
    assert f"{opened.accuracy} (" in shown
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
    window.size(1400, 1100)


def test_the_pages_of_run_and_model_lead_to_each_other(opened: Opened) -> None:
    """The run's page has the verdict and the way to the report, drawn as HTML inside the page.

    Model and version have descriptions; the version shows aliases, metrics and origin.
    """
    window, server, run = opened.window, opened.mlflow, opened.run
    window.open(
        f"{server}/{addresses.run_path(run)}",
        f"{opened.accuracy} of",
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
        f"{opened.accuracy} of",
        *("data version", "Balanced accuracy", "parameters", run.run_id, "champion"),
    )


def test_a_promotion_is_answered_in_a_form(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended, the flow shows both versions; approved in the form, the better one is champion."""
    window, servers = opened.window, opened.servers
    monkeypatch.chdir(servers.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", opened.mlflow)  # logs in by itself
    versions("roses", servers.folder, range(60), range(10))
    asked = servers.run("promote", "roses", "--ask", "--promotion.no-package-check")
    assert asked.code == 0, asked.err
    window.open(f"{opened.prefect}/v2/runs", "roses, version 2: champion?")
    window.follow("roses, version 2: champion?")
    window.assert_shows("Suspended")
    window.press("Open menu")
    window.take("Resume", "menuitem")
    window.assert_shows(
        "Should roses, version 2, become champion?",
        "challenger roses/2 has an accuracy of 95.0% and champion roses/1 70.0%",
        "Without an answer within 72 hours, the request expires.",
    )
    window.press("Select")
    window.take("approve", "option")
    window.write("Who", "Ada")
    window.write("Reason (Optional)", "looks good")
    assert champion("roses") == "1"
    window.submit("Resume", "Provide input to resume")
    window.assert_shows("Promoted")
    assert champion("roses") == "2"
    shown = servers.run("models", "roses")
    assert "promoted: approved by Ada: looks good" in shown.out
