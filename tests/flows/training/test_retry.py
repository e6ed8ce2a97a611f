"""Prefect's own retry of a flow run continues its MLflow run."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry

from benchmarks.kills import has_work
from patchline.flows.new_data.watch_flow import retrain_when_new
from patchline.pipeline import config_files
from patchline.pipeline.workspace.tracking import tracking_store
from tests.conftest import write_photos
from tests.patience import until


def _kill_evaluation() -> None:
    """Kill the first evaluation process that this process starts."""

    def killed() -> bool:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if "patchline.pipeline.evaluation" in child.cmdline() and has_work(child):
                    child.kill()
                    return True
        return False

    until(killed, "no evaluation", pause=0.01)


@pytest.mark.slow
def test_a_flow_run_that_is_tried_again_continues_its_mlflow_run(
    prefect_server: str,
    client: SyncPrefectClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The evaluation is killed, Prefect tries again: one MLflow run, trained once, one version."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    photos = write_photos(tmp_path / "photos", images=8)
    settings: dict[str, Any] = {
        "data": {"source": "image_folder", "path": str(photos), "image_size": 16},
        "model": {"name": "vit", "depth": 1, "embed_dim": 16, "num_heads": 2},
        "training": {"epochs": 2, "threads": 1},
        "evaluation": {"explanations": False},
        "promotion": {"package_check": False},
        "preset": "none",
    }
    parameters = {"config": config_files.validate_config(settings)}
    threading.Thread(target=_kill_evaluation, daemon=True).start()
    flow_run = client.create_flow_run(retrain_when_new, parameters=parameters)
    failed: Any = run_flow(
        retrain_when_new, flow_run=flow_run, parameters=parameters, return_type="state"
    )
    assert failed.message.startswith(
        "The process patchline.pipeline.evaluation was killed by SIGKILL"
    )
    results = ".patchline/runs/*/training/result.json"
    [trained] = (file.stat().st_mtime_ns for file in tmp_path.glob(results))
    client.set_flow_run_state(flow_run.id, AwaitingRetry(), force=True)
    again = client.read_flow_run(flow_run.id)
    ended: Any = run_flow(
        retrain_when_new, flow_run=again, parameters=parameters, return_type="state"
    )
    assert ended.is_completed()
    store = tracking_store.client()
    [run] = store.search_runs([each.experiment_id for each in store.search_experiments()])
    fits = [file.stat().st_mtime_ns for file in tmp_path.glob(results)]
    assert len(store.search_model_versions()) == 1
    assert (run.info.status, fits) == ("FINISHED", [trained])
    assert len(store.get_metric_history(run.info.run_id, "train/loss")) == 2
    assert len(store.get_metric_history(run.info.run_id, "test/accuracy")) == 1
