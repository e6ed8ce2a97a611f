"""What a person finds in both UIs while `patchline up` runs: a run, a schedule, a request."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.browser.chromium import Browser, browser, missing
from tests.conftest import PREFECT_DATABASE, patchline, write_photos
from tests.flows.approval.approval_parts import champion, versions
from tests.flows.services.local_servers import proof
from tests.patience import patient

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


class Opened(NamedTuple):
    """The pages of a folder with one run and one schedule."""

    window: Browser
    folder: Path
    prefect: str
    mlflow: str
    summary: dict[str, Any]

    def ask(self, path: str, question: dict[str, Any]) -> Any:
        """Post a filter to Prefect and return its answer."""
        request = urllib.request.Request(
            f"{self.prefect}/api/{path}",
            data=json.dumps(question).encode(),
            headers={"content-type": "application/json", **proof(self.folder)},
        )
        with urllib.request.urlopen(request, timeout=patient(60)) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Start the servers of a folder, train, make a schedule, and open a browser."""
    folder = tmp_path_factory.mktemp("folder")
    write_photos(folder / "photos", images=40)
    database = {PREFECT_DATABASE: f"sqlite+aiosqlite:///{folder / 'prefect.db'}"}

    def command(*words: str) -> Any:
        done = patchline(*words, "--json", cwd=folder, env=database)
        assert done.code == 0, done.err
        return done.json

    up = command("up")
    try:
        run = command("run", "photos", "--preset", "none", "--training.epochs", "12")
        times = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
        command("schedule", "create", "nightly", *times, "--config", run["config"])
        prefect, mlflow = (up[key].rstrip("/") for key in ("prefect_url", "mlflow_url"))
        with browser(1400, 1100) as window:
            window.sign_in(up["prefect_login_url"])
            yield Opened(window, folder, prefect, mlflow, run)
    finally:
        patchline("down", "--now", cwd=folder, env=database)


def test_the_flow_run_tells_its_stages_its_log_and_its_progress(opened: Opened) -> None:
    """The page of the flow run is named after data, model and accuracy, and has the epochs' log.

    Its progress ends at 100% with the last epoch; links of the verdict lead to MLflow.
    """
    window = opened.window
    accuracy = opened.summary["metrics"]["test/accuracy"]["value"]
    tag = {"tags": {"all_": [f"mlflow:{opened.summary['run_id']}"]}}
    flow_run = str(opened.ask("flow_runs/filter", {"flow_runs": tag})[0]["id"])
    page = f"{opened.prefect}/v2/runs/flow-run/{flow_run}"
    window.open(f"{page}?tab=Logs")
    window.assert_shows(
        f"photos vit+conv {accuracy:.1%}",
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
    window.follow("Report")
    window.assert_shows("photos: test report", "Least certain")


def test_a_schedule_is_a_deployment_with_a_form(opened: Opened) -> None:
    """The deployment names its times; its form has the settings with their help texts."""
    named = {"deployments": {"name": {"like_": "nightly"}}}
    [deployment] = opened.ask("deployments/filter", named)
    opened.window.open(f"{opened.prefect}/v2/deployments", "nightly", "Train and register")
    page = f"{opened.prefect}/v2/deployments/deployment/{deployment['id']}"
    opened.window.open(page, "nightly", "02:00 AM")
    opened.window.open(f"{page}/run", "training", "Passes over the training split")


def test_a_promotion_is_answered_in_a_form(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended, the flow shows both versions; approved in the form, the better one is champion."""
    window = opened.window
    monkeypatch.chdir(opened.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", opened.mlflow)  # logs in by itself
    versions("roses", opened.folder, range(60), range(10))
    options = ("--ask", "--promotion.no-package-check")
    asked = patchline("promote", "roses", *options, cwd=opened.folder)
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
    window.press("Resume")
    window.assert_shows("Promoted")
    assert champion("roses") == "2"
    shown = patchline("models", "roses", cwd=opened.folder)
    assert "promoted: approved by Ada: looks good" in shown.out
