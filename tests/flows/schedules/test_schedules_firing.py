"""Schedules that a real Prefect worker fires: in the same minute, and after a long sleep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pandas as pd
import pytest
from prefect.client.orchestration import SyncPrefectClient

from patchline.flows.schedules import deployments, work_pools
from patchline.pipeline.workers.worker_start import stop_group
from tests.conftest import Run, write_photos
from tests.flows.schedules.schedule_parts import every_minute, let_pass, runs_of
from tests.patience import until


@contextmanager
def _worker(server: str, store: str) -> Iterator[None]:
    """Run a Prefect worker for two runs at once, as `patchline up` sets it."""
    prefect = Path(sys.executable).parent / "prefect"
    process = subprocess.Popen(
        [
            prefect,
            "--no-prompt",
            "worker",
            "start",
            "--pool",
            work_pools.of_folder(),
            "--limit",
            "2",
        ],
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


@pytest.mark.slow
def test_a_worker_starts_the_schedules_of_a_minute_and_one_run_after_a_long_sleep(
    prefect_server: str, finished_run: Run, client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Whoever wakes up first, the runner or the look at what was missed: one run each, not ten.

    All run to the end, each with its own parameters, in the folder that they belong to.
    """
    write_photos(tmp_path / "new", classes=1, images=3)
    tables = [tmp_path / "one.csv", tmp_path / "two.csv"]
    ids = []
    for out in tables:
        predicting = {"model": "photos/1", "images": "new", "out": str(out)}
        ids.append(every_minute(out.stem, parameters=predicting))
        let_pass(client, ids[-1], minutes=10, ahead=0)
        assert len(runs_of(client, ids[-1])) >= 9

    def states(deployment_id: UUID) -> list[str]:
        return sorted(str(run.state_name) for run in runs_of(client, deployment_id))

    def settled() -> bool:
        deployments.drop_missed()
        runs = [run for each in ids for run in runs_of(client, each)]
        return all(run.state is not None and run.state.is_final() for run in runs)

    with _worker(prefect_server, finished_run.tracking_uri):
        until(lambda: set(states(ids[0])) != {"Scheduled"}, "no run began", seconds=300, pause=1)
        until(settled, "not all ended", seconds=300, pause=1)
    for deployment_id, table in zip(ids, tables, strict=True):
        *missed, last = states(deployment_id)
        assert (set(missed), last) == ({"Cancelled"}, "Completed")
        assert len(pd.read_csv(table)) == 3
