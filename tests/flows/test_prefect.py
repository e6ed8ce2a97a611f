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
from tests.conftest import Run, patchline, write_photos
from tests.flows.lasting_server import PROOF, LastingServer
from tests.patience import patient


def _ask(url: str, path: str, question: dict[str, Any] | None = None) -> Any:
    """Post a filter to a server and return its answer."""
    request = urllib.request.Request(
        f"{url}/{path}",
        data=json.dumps(question or {}).encode(),
        headers={"content-type": "application/json", **PROOF},
    )
    with urllib.request.urlopen(request, timeout=patient(60)) as response:
        return json.load(response)


@pytest.fixture(scope="module")
def server(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Prefect server on a copy of a finished run's database; return its address."""
    started = LastingServer(
        tmp_path_factory.mktemp("prefect_server"), finished_run.folder / "prefect.db"
    )
    yield started.url()
    started.stop()


def test_a_run_shows_stages_artifacts_and_the_way_to_mlflow(finished_run: Run, server: str) -> None:
    """A run is completed in Prefect, stage by stage, and leads to MLflow."""
    [flow_run] = _ask(server, "flow_runs/filter", {"sort": "START_TIME_ASC", "limit": 1})
    run_id = finished_run.summary["run_id"]
    assert flow_run["state_type"] == "COMPLETED"
    assert flow_run["name"].startswith("photos ")
    assert f"mlflow:{run_id}" in flow_run["tags"]
    assert [tag for tag in flow_run["tags"] if tag.startswith(live_runs.OWNER)]
    own = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    tasks = _ask(server, "task_runs/filter", {"sort": "EXPECTED_START_TIME_ASC", **own})
    names = [task["name"] for task in tasks]
    assert names[:3] == ["Read photos", "Decode 120 images", "Train vit with conv for 12 epochs"]
    assert [name.split()[0] for name in names[3:]] == ["Evaluate", "Package", "Register", "Assign"]
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    artifacts = {each["key"]: each for each in _ask(server, "artifacts/filter", own)}
    assert set(artifacts) >= {"summary", "test-metrics", "mlflow-run"}
    assert run_id in artifacts["summary"]["data"]
    assert run_id in artifacts["mlflow-run"]["data"]
    assert flow_run["parameters"]["config"]["training"]["epochs"] == 12


@pytest.mark.slow
def test_a_failed_stage_is_failed_on_a_configured_server_and_leaves_no_mlflow_run(
    tmp_path: Path, server: str
) -> None:
    """Wrong data fails the flow run on a configured server, without a retry or an MLflow run."""
    write_photos(tmp_path / "photos", images=6)
    (tmp_path / "photos" / "broken").mkdir()
    (tmp_path / "photos" / "broken" / "a.jpg").write_bytes(b"\xff\xd8\xff nothing")
    env = {"PREFECT_API_URL": server}
    done = patchline("run", "photos", "--preset", "none", cwd=tmp_path, env=env)
    assert done.code == 2
    newest = _ask(server, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    assert newest["state_type"] == "FAILED"
    assert "'broken'" in newest["state"]["message"]
    [task] = _ask(server, "task_runs/filter", {"flow_runs": {"id": {"any_": [newest["id"]]}}})
    assert task["run_count"] == 1
    assert not (tmp_path / "mlflow.db").exists()


def test_the_form_in_prefect_comes_from_the_config_with_its_help() -> None:
    """The flow's parameter schema holds every section, described, with plugin settings free.

    What a run records is no setting, but a submitted config may have it.
    """
    schema = training_flow.parameters.model_dump()
    definitions = schema["definitions"]
    shown = set(definitions["RunConfig"]["properties"])
    assert shown == set(RunConfig.model_fields) - {"record"}
    assert definitions["RunConfig"].get("additionalProperties") is None
    assert "Passes over" in definitions["TrainingConfig"]["properties"]["epochs"]["description"]
    assert definitions["ModelChoice"]["additionalProperties"] is True
