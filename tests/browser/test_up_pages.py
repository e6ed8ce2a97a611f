"""What a person finds in both UIs while `patchline up` runs: a run, a schedule, its form."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.browser.chromium import Browser, browser, missing
from tests.conftest import PREFECT_DATABASE, patchline, write_photos
from tests.flows.services.local_servers import proof
from tests.patience import patient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


class Opened(NamedTuple):
    """The pages of a folder with one run and one schedule."""

    window: Browser
    prefect: str
    mlflow: str
    summary: dict[str, Any]
    proof: dict[str, str]

    def ask(self, path: str, question: dict[str, Any] | None = None) -> Any:
        """Post a filter to Prefect and return its answer."""
        request = urllib.request.Request(
            f"{self.prefect}/api/{path}",
            data=json.dumps(question or {}).encode(),
            headers={"content-type": "application/json", **self.proof},
        )
        with urllib.request.urlopen(request, timeout=patient(60)) as response:
            return json.load(response)

    @property
    def flow_run(self) -> str:
        """Id of the flow run."""
        question = {"flow_runs": {"tags": {"all_": [f"mlflow:{self.summary['run_id']}"]}}}
        return str(self.ask("flow_runs/filter", question)[0]["id"])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Start the servers of a folder, train, make a schedule, and open a browser."""
    folder = tmp_path_factory.mktemp("folder")
    write_photos(folder / "photos", images=40)
    database = {PREFECT_DATABASE: f"sqlite+aiosqlite:///{folder / 'prefect.db'}"}
    up = patchline("up", "--json", cwd=folder, env=database)
    assert up.code == 0, up.err
    try:
        run = patchline(
            *("run", "photos", "--preset", "none", "--training.epochs", "12", "--json"),
            cwd=folder,
            env=database,
        )
        assert run.code == 0, run.err
        schedule = patchline(
            *("schedule", "create", "nightly", "--cron", "0 2 * * *"),
            *("--timezone", "Europe/Berlin", "--config", run.json["config"]),
            cwd=folder,
            env=database,
        )
        assert schedule.code == 0, schedule.err
        prefect, mlflow = (up.json[key].rstrip("/") for key in ("prefect_url", "mlflow_url"))
        with browser(1400, 1100) as window:
            window.sign_in(up.json["prefect_login_url"])
            yield Opened(window, prefect, mlflow, run.json, proof(folder))
    finally:
        patchline("down", "--now", cwd=Path(folder), env=database)


def test_the_flow_run_tells_its_stages_its_log_and_its_progress(opened: Opened) -> None:
    """The page of the flow run is named after data, model and accuracy, and has the epochs' log."""
    accuracy = opened.summary["metrics"]["test/accuracy"]["value"]
    page = f"{opened.prefect}/v2/runs/flow-run/{opened.flow_run}"
    opened.window.open(f"{page}?tab=Logs")
    opened.window.assert_shows(
        f"photos vit+conv {accuracy:.1%}",
        *("Completed", "7 Task runs", "Train and register", "Reading the data"),
        *("epoch 1: validation accuracy", "Training vit with conv for 12 epochs"),
    )
    opened.window.open(f"{page}?tab=TaskRuns")
    opened.window.assert_shows(
        *("Read photos", "Decode 120 images", "Train vit with conv for 12 epochs"),
        *("Evaluate on", "Package the model", "Register in photos", "Assign aliases of photos"),
    )
    opened.window.open(f"{page}?tab=Artifacts")
    opened.window.assert_shows("summary", "test-metrics", "mlflow-run")


def test_the_graph_is_one_line_from_the_data_to_the_decision(opened: Opened) -> None:
    """Each stage has an edge from the stage before, and no other one."""
    path = f"{opened.prefect}/api/flow_runs/{opened.flow_run}/graph-v2"
    request = urllib.request.Request(path, headers=opened.proof)
    with urllib.request.urlopen(request, timeout=patient(60)) as response:
        nodes = dict(json.load(response)["nodes"])
    order = sorted(nodes, key=lambda node: str(nodes[node]["start_time"]))
    assert [nodes[node]["label"].split()[0] for node in order] == [
        *("Read", "Decode", "Train", "Evaluate", "Package", "Register", "Assign"),
    ]
    for before, node in pairwise(order):
        assert {parent["id"] for parent in nodes[node]["parents"]} == {before}


def test_the_verdict_leads_to_mlflow(opened: Opened) -> None:
    """The summary's links open the run and the report in MLflow."""
    question = {"artifacts": {"key": {"any_": ["summary"]}}}
    artifact = opened.ask("artifacts/filter", question)[0]
    page = f"{opened.prefect}/v2/artifacts/artifact/{artifact['id']}"
    opened.window.open(page)
    opened.window.assert_shows(
        "test images classified correctly", "Registered as photos, version 1", "ROC AUC"
    )
    opened.window.follow("Report")
    opened.window.assert_shows("photos: test report", "Least certain")


def test_the_training_has_a_progress_artifact(opened: Opened) -> None:
    """It ends at 100% with the metrics of the last epoch."""
    question = {"artifacts": {"key": {"any_": ["progress"]}}}
    [artifact] = opened.ask("artifacts/filter", question)
    assert float(artifact["data"]) == 100
    assert "epoch 12/12" in artifact["description"]


def test_a_schedule_is_a_deployment_with_a_form(opened: Opened) -> None:
    """The deployment names its times; its form has the settings with their help texts."""
    question = {"deployments": {"name": {"like_": "nightly"}}}
    [deployment] = opened.ask("deployments/filter", question)
    opened.window.open(f"{opened.prefect}/v2/deployments")
    opened.window.assert_shows("nightly", "Train and register")
    page = f"{opened.prefect}/v2/deployments/deployment/{deployment['id']}"
    opened.window.open(page)
    opened.window.assert_shows("nightly", "02:00 AM")
    opened.window.open(f"{page}/run")
    opened.window.assert_shows("training", "Passes over the training split")
