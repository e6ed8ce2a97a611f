"""What Prefect shows about a run, on a real server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchline.flows.training.training_flow import training_flow
from patchline.pipeline.config import RunConfig
from patchline.pipeline.run_memory import live_runs
from tests.conftest import patchline, write_photos
from tests.flows.lasting_server import PROOF, LastingServer
from tests.patience import patient


class Server:
    """A Prefect server and what it knows."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, question: dict[str, Any] | None = None) -> Any:
        """Post a filter to the server and return its answer."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=json.dumps(question or {}).encode(),
            headers={"content-type": "application/json", **PROOF},
        )
        with urllib.request.urlopen(request, timeout=patient(60)) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path) -> Iterator[Server]:
    """Start a Prefect server with a database of its own."""
    started = LastingServer(tmp_path_factory.mktemp("prefect_server"), empty_prefect)
    yield Server(started.url())
    started.stop()


def test_a_configured_server_shows_stages_artifacts_and_the_way_to_mlflow(
    tmp_path: Path, server: Server
) -> None:
    """A run on a configured server is completed there, stage by stage, and leads to MLflow."""
    write_photos(tmp_path / "photos", images=8)
    done = patchline(
        *("run", "photos", "--training.epochs", "2", "--json"),
        cwd=tmp_path,
        env={"PREFECT_API_URL": server.url},
    )
    assert done.code == 0, done.err
    [flow_run] = server.ask("flow_runs/filter")
    run_id = done.json["run_id"]
    assert flow_run["state_type"] == "COMPLETED"
    assert flow_run["name"].startswith("photos ")
    assert f"mlflow:{run_id}" in flow_run["tags"]
    assert [tag for tag in flow_run["tags"] if tag.startswith(live_runs.OWNER)]
    tasks = server.ask("task_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
    names = [task["name"] for task in tasks]
    assert names[:3] == ["Read photos", "Decode 24 images", "Train vit with conv for 2 epochs"]
    assert [name.split()[0] for name in names[3:]] == ["Evaluate", "Package", "Register", "Assign"]
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    artifacts = {artifact["key"]: artifact for artifact in server.ask("artifacts/filter")}
    assert set(artifacts) >= {"summary", "test-metrics", "mlflow-run"}
    assert run_id in artifacts["summary"]["data"]
    assert run_id in artifacts["mlflow-run"]["data"]
    parameters = flow_run["parameters"]["config"]
    assert parameters["training"]["epochs"] == 2


def test_a_failed_stage_is_failed_in_prefect_and_leaves_no_mlflow_run(
    tmp_path: Path, server: Server
) -> None:
    """Wrong data fails the flow run without a retry, before an MLflow run is opened."""
    write_photos(tmp_path / "photos", images=6)
    (tmp_path / "photos" / "broken").mkdir()
    (tmp_path / "photos" / "broken" / "a.jpg").write_bytes(b"\xff\xd8\xff nothing")
    done = patchline("run", "photos", cwd=tmp_path, env={"PREFECT_API_URL": server.url})
    assert done.code == 2
    newest = server.ask("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    assert newest["state_type"] == "FAILED"
    assert "'broken'" in newest["state"]["message"]
    [task] = server.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [newest["id"]]}}})
    assert task["run_count"] == 1
    assert not (tmp_path / "mlflow.db").exists()


def test_the_form_in_prefect_comes_from_the_config_with_its_help() -> None:
    """The flow's parameter schema holds every section, described, with plugin settings free."""
    schema = training_flow.parameters.model_dump()
    definitions = schema["definitions"]
    assert set(definitions["RunConfig"]["properties"]) == set(RunConfig.model_fields)
    assert "Passes over" in definitions["TrainingConfig"]["properties"]["epochs"]["description"]
    assert definitions["ModelChoice"]["additionalProperties"] is True
