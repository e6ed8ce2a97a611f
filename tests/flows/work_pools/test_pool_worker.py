"""Two workers of one pool: a run whose worker is killed resumes on the other one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import PATCHLINE, patchline, write_photos
from tests.flows.services.local_servers import Servers, until

_CONFIG = """
name: wander
preset: none
data: {path: photos}
training: {epochs: 60, batch_size: 8}
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Start the servers of a folder with photos and a config file."""
    servers = Servers(tmp_path)
    write_photos(tmp_path / "photos", images=30)
    (tmp_path / "run.yaml").write_text(_CONFIG, encoding="utf-8")
    try:
        done = servers.up()
        assert done.code == 0, done.err
        yield servers
    finally:
        servers.down("--now")


class Worker:
    """A worker of the pool `team`, with its log."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log = folder / f"worker{number}.log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(PATCHLINE), "worker", "--work-pool", "team"],
                cwd=folder,
                stdout=stream,
                stderr=stream,
            )

    def has_said(self, pattern: str) -> bool:
        """Return whether something is in its log."""
        return (
            re.search(pattern, self.log.read_text(encoding="utf-8", errors="replace")) is not None
        )

    def family(self) -> list[psutil.Process]:
        """Return its process and what it has started."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


@pytest.mark.slow
def test_a_run_of_a_killed_worker_resumes_on_another(servers: Servers) -> None:
    """There is one MLflow run, each epoch is logged once, and no process of the worker is left."""
    folder, team = servers.folder, ("--work-pool", "team")
    made = patchline("schedule", "create", "w", "--interval", "1d", "--config", "run.yaml", *team,
                     cwd=folder)  # fmt: skip
    assert made.code == 0, made.err
    assert "Start one with `patchline worker --work-pool team`" in made.err
    workers = [Worker(folder, number) for number in range(2)]
    try:
        until(lambda: all(each.has_said("Waiting for runs") for each in workers), "no workers")
        assert patchline("schedule", "run-now", "w", cwd=folder).code == 0
        until(lambda: any(each.has_said("epoch 3:") for each in workers), "no run has begun")
        killed, other = sorted(workers, key=lambda each: not each.has_said("epoch 3:"))
        family = killed.family()
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
        until(lambda: other.has_said("resuming run"), "the run was not resumed")
        until(lambda: other.has_said("Flow run .* - Finished in state"), "the run has not ended")
        until(lambda: not any(map(_is_alive, family)), "processes are left")
        os.kill(other.process.pid, signal.SIGTERM)
        assert other.process.wait() == 0
    finally:
        for each in workers:
            each.process.kill()
    os.environ["MLFLOW_TRACKING_URI"] = servers.state.mlflow_url
    os.chdir(folder)
    store = client()
    experiment = store.get_experiment_by_name("wander")
    assert experiment is not None
    [run] = store.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    losses = store.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(metric.step for metric in losses) == sorted({each.step for each in losses})
    assert len(losses) >= 60


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
