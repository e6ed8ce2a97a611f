"""Schedules that a real Prefect worker fires: in the same minute, and after a long sleep."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pandas as pd
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule

from patchline.flows.schedules import deployments, missed_runs
from patchline.flows.schedules.prediction_flow import predict_flow
from patchline.pipeline.workers.worker_start import stop_group
from tests.conftest import Run, write_photos
from tests.patience import patient

pytestmark = pytest.mark.slow
_PREFECT = Path(sys.executable).parent / "prefect"
_MINUTE = dt.timedelta(minutes=1)
_PATIENCE_SECONDS = patient(300)


@contextmanager
def _worker(server: str, store: str) -> Iterator[None]:
    """Run a Prefect worker for two runs at once, as `patchline up` sets it."""
    process = subprocess.Popen(
        [_PREFECT, "--no-prompt", "worker", "start", "--pool", "patchline", "--limit", "2"],
        env={
            **os.environ,
            "PREFECT_API_URL": server,
            "MLFLOW_TRACKING_URI": store,
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_WORKER_PREFETCH_SECONDS": "0",
        },
        start_new_session=True,
    )
    try:
        yield
    finally:
        stop_group(process)


def _deploy(client: SyncPrefectClient, out: Path, began: dt.datetime, minutes: float) -> UUID:
    """Create a schedule of every minute, with the runs of the minutes since it began."""
    deployment_id = deployments.deploy(
        predict_flow,
        out.stem,
        parameters={"model": "photos/1", "images": "new", "out": str(out)},
        schedule=IntervalSchedule(interval=_MINUTE, anchor_date=began),
        labels={deployments.KIND: "schedule"},
        description="",
    )
    client.request(
        "POST",
        "/deployments/{id}/schedule",
        path_params={"id": deployment_id},
        json={
            "start_time": began.isoformat(),
            "end_time": (began + dt.timedelta(minutes=minutes)).isoformat(),
        },
    )
    return deployment_id


def _runs(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    wanted = FlowRunFilterDeploymentId(any_=[deployment_id])
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(deployment_id=wanted))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(1)


def test_a_worker_starts_two_schedules_of_the_same_minute(
    prefect_server: str, finished_run: Run, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Both run to the end, each with its own parameters, in the folder that they belong to."""
    write_photos(tmp_path / "new", classes=1, images=3)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=20)
    tables = [tmp_path / "one.csv", tmp_path / "two.csv"]
    ids = [_deploy(client, out, soon, minutes=0.5) for out in tables]
    with _worker(prefect_server, finished_run.tracking_uri):
        _wait_until(
            lambda: all(
                run.state is not None and run.state.is_final()
                for each in ids
                for run in _runs(client, each)
            )
        )
    runs = [run for each in ids for run in _runs(client, each)]
    assert [run.state_name for run in runs] == ["Completed", "Completed"]
    assert runs[0].expected_start_time == runs[1].expected_start_time
    assert [len(pd.read_csv(table)) for table in tables] == [3, 3]


@pytest.mark.parametrize("first", ["runner", "keeper"])
def test_after_a_long_sleep_a_worker_starts_one_run(
    prefect_server: str, finished_run: Run, client: SyncPrefectClient, tmp_path: Path, first: str
) -> None:
    """Whoever wakes up first, the runner or the look at what was missed: one run, not ten."""
    write_photos(tmp_path / "new", classes=1, images=3)
    began = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10, seconds=5)
    deployment_id = _deploy(client, tmp_path / "often.csv", began, minutes=10.1)
    assert len(_runs(client, deployment_id)) == 11

    def taken() -> bool:
        return any(run.state_name != "Scheduled" for run in _runs(client, deployment_id))

    def settled() -> bool:
        missed_runs.drop_missed()
        return all(run.state and run.state.is_final() for run in _runs(client, deployment_id))

    if first == "keeper":
        missed_runs.drop_missed()
    with _worker(prefect_server, finished_run.tracking_uri):
        if first == "runner":
            _wait_until(taken)
        _wait_until(settled)
    states = sorted(str(run.state_name) for run in _runs(client, deployment_id))
    assert states == ["Cancelled"] * 10 + ["Completed"]
