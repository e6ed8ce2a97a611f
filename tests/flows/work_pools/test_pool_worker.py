"""Two workers of one pool: a run whose worker is killed resumes on the other one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import patchline, write_photos
from tests.flows.services.local_servers import serving
from tests.flows.training.runs import Begun
from tests.patience import until

_CONFIG = """
name: wander
preset: none
data: {path: photos}
training: {epochs: 20, batch_size: 8}
evaluation: {corruptions: 0, explanations: false}
"""


@pytest.mark.slow
def test_a_run_of_a_killed_worker_resumes_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one MLflow run, each epoch is logged once, and no process of the worker is left."""
    write_photos(tmp_path / "photos", images=30)
    (tmp_path / "run.yaml").write_text(_CONFIG, encoding="utf-8")
    with serving(tmp_path):
        create = "schedule create w --interval 1d --config run.yaml --work-pool team"
        made = patchline(*create.split(), cwd=tmp_path)
        assert made.code == 0, made.err
        assert "Start one with `patchline worker --work-pool team`" in made.err
        workers = [Begun(tmp_path, "worker --work-pool team") for _ in range(2)]
        try:
            for each in workers:
                until(lambda: "Waiting for runs" in each.said(), "no worker waits")  # noqa: B023 - called here
            assert patchline("schedule", "run-now", "w", cwd=tmp_path).code == 0
            until(lambda: any("epoch 3:" in each.said() for each in workers), "no run has begun")
            killed, other = sorted(workers, key=lambda each: "epoch 3:" not in each.said())
            killed.end()
            ends = "(?s)resuming run.*Flow run .* - Finished in state"
            other.wait_until(lambda: re.search(ends, other.said()))
            assert other.end(signal.SIGTERM) == 0
        finally:
            for each in workers:
                each.process.kill()
        monkeypatch.chdir(tmp_path)
        store = client()
        experiment = store.get_experiment_by_name("wander")
        assert experiment
        [run] = store.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
        losses = store.get_metric_history(run.info.run_id, "train/loss")
        assert sorted(metric.step for metric in losses) == sorted({each.step for each in losses})
        assert len(losses) >= 20
