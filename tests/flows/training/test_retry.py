"""Prefect's own retry of a flow run continues its MLflow run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.entities import Run

from benchmarks.kills import has_work
from patchline.flows.new_data.watch_flow import retrain_when_new
from patchline.flows.training.training_flow import training_flow
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.tracking import tracking_store
from tests.conftest import write_photos
from tests.patience import patient

pytestmark = pytest.mark.slow


@pytest.fixture
def prefect(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test starts use the module's server, too."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)


def _kill_evaluation() -> None:
    """Kill the first evaluation process that this process starts."""
    deadline = time.monotonic() + patient(240)
    while time.monotonic() < deadline:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if "patchline.pipeline.evaluation" in child.cmdline() and has_work(child):
                    child.kill()
                    return
        time.sleep(0.01)


def _config(folder: Path) -> RunConfig:
    return config_files.validated(
        {
            "data": {"source": "image_folder", "path": str(folder)},
            "model": {"name": "vit", "depth": 1},
            "training": {"epochs": 2, "threads": 1},
            "preset": "none",
        }
    )


def _tried_twice(tried: Any, photos: Path, between: Callable[[], object]) -> None:
    """Run a flow whose evaluation is killed, do something, run it again."""
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow
    from prefect.states import AwaitingRetry

    parameters = {"config": _config(photos)}
    threading.Thread(target=_kill_evaluation, daemon=True).start()
    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(tried, parameters=parameters)
        failed: Any = run_flow(tried, flow_run=flow_run, parameters=parameters, return_type="state")
        assert failed.message.startswith(
            "The process patchline.pipeline.evaluation was killed by SIGKILL"
        )
        between()
        client.set_flow_run_state(flow_run.id, AwaitingRetry(), force=True)
        again = client.read_flow_run(flow_run.id)
        ended: Any = run_flow(tried, flow_run=again, parameters=parameters, return_type="state")
        assert ended.is_completed()


def _fits() -> dict[str, int]:
    """Return when each training ended, by the folder of its run."""
    results = Path(".patchline/runs").glob("*/training/result.json")
    return {file.parts[2]: file.stat().st_mtime_ns for file in results}


def _mlflow_runs() -> list[Run]:
    store = tracking_store.client()
    experiments = [experiment.experiment_id for experiment in store.search_experiments()]
    return list(store.search_runs(experiments))


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize("tried", [training_flow, retrain_when_new])
def test_a_flow_run_that_is_tried_again_continues_its_mlflow_run(
    tmp_path: Path, tried: Any
) -> None:
    """The evaluation is killed, Prefect tries again: one MLflow run, trained once, one version."""
    photos = write_photos(tmp_path / "photos", images=8)
    before: list[dict[str, int]] = []
    _tried_twice(tried, photos, between=lambda: before.append(_fits()))
    store, [run] = tracking_store.client(), _mlflow_runs()
    assert run.info.status == "FINISHED"
    assert len(store.search_model_versions()) == 1
    assert before == [_fits()]
    assert len(before[0]) == 1
    assert len(store.get_metric_history(run.info.run_id, "train/loss")) == 2
    assert len(store.get_metric_history(run.info.run_id, "test/accuracy")) == 1


@pytest.mark.usefixtures("prefect")
def test_a_flow_run_that_is_tried_again_on_other_data_starts_anew(tmp_path: Path) -> None:
    """Nobody is there to start another run, and half a model of each data would be none."""
    photos = write_photos(tmp_path / "photos", images=8)
    _tried_twice(training_flow, photos, lambda: write_photos(photos, images=9))
    assert sorted(run.info.status for run in _mlflow_runs()) == ["FAILED", "FINISHED"]
    assert len(tracking_store.client().search_model_versions()) == 1
    assert len(_fits()) == 2


@pytest.mark.usefixtures("prefect")
def test_a_wrong_config_fails_the_flow_run_with_the_plain_sentence(tmp_path: Path) -> None:
    """A run that no command line has checked says what is wrong, without a trace."""
    from prefect import State

    config = RunConfig.model_validate(
        {"data": {"source": "image_folder", "path": str(tmp_path)}, "model": {"name": "vti"}}
    )
    state = training_flow(config, return_state=True)
    assert isinstance(state, State)
    assert state.is_failed()
    assert str(state.message).startswith("There is no model plugin 'vti'. Did you mean 'vit'?")
