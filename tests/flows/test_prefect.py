"""What Prefect shows about a run."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any

from patchline.pipeline.workspace.run_memory import live_runs
from tests.conftest import Run


def test_a_run_shows_stages_artifacts_and_the_way_to_mlflow(finished_run: Run) -> None:
    """A run is completed in Prefect's database, stage by stage, and leads to MLflow."""
    database = sqlite3.connect(f"file:{finished_run.folder / 'prefect.db'}?immutable=1", uri=True)

    def rows(query: str) -> list[tuple[Any, ...]]:
        return list(database.execute(query))

    with contextlib.closing(database):
        [(name, state, tags, config)] = rows(
            "SELECT name, state_type, tags, parameters FROM flow_run"
        )
        tasks = rows("SELECT name, state_type FROM task_run ORDER BY expected_start_time")
        artifacts = dict(rows("SELECT key, data FROM artifact"))
    run_id = finished_run.summary["run_id"]
    assert (state, name.split()[0]) == ("COMPLETED", "photos")
    assert f"mlflow:{run_id}" in json.loads(tags)
    assert [tag for tag in json.loads(tags) if tag.startswith(live_runs.OWNER)]
    names = [name for name, _ in tasks]
    assert names[:3] == ["Read photos", "Decode 120 images", "Train vit with conv for 12 epochs"]
    assert [name.split()[0] for name in names[3:]] == ["Evaluate", "Package", "Register", "Assign"]
    assert {state for _, state in tasks} == {"COMPLETED"}
    assert "test-metrics" in artifacts
    for key in ("summary", "mlflow-run"):
        assert run_id in artifacts[key]
    assert json.loads(config)["config"]["training"]["epochs"] == 12
