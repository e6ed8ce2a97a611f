"""Two workers of one pool: a run whose worker is killed resumes on the other one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.conftest import write_photos
from tests.flows.training.runs import Begun, only_run, store_of
from tests.made.servers import Command
from tests.patience import until

_CONFIG = """
name: wander
preset: none
data: {path: photos}
training: {epochs: 20, batch_size: 8}
evaluation: {explanations: false}
promotion: {package_check: false}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_store", "shared_prefect")
def test_a_run_of_a_killed_worker_resumes_on_another(run_here: Command, tmp_path: Path) -> None:
    """There is one MLflow run, each epoch is logged once, and no process of the worker is left."""
    write_photos(tmp_path / "photos", images=20)
    (tmp_path / "run.yaml").write_text(_CONFIG, encoding="utf-8")
    create = "schedule create w --interval 1d --config run.yaml --work-pool team"
    code, _, said = run_here(*create.split())
    assert code == 0, said
    assert "Start one with `patchline worker --work-pool team`" in said
    workers = [Begun(tmp_path, "worker --work-pool team") for _ in range(2)]
    try:
        for each in workers:
            until(lambda: "Waiting for runs" in each.said(), "no worker waits")  # noqa: B023 - called here
        run_here.out("schedule", "run-now", "w")
        until(lambda: any("epoch 3:" in each.said() for each in workers), "no run has begun")
        killed, other = sorted(workers, key=lambda each: "epoch 3:" not in each.said())
        killed.end()
        ends = "(?s)resuming run.*Flow run .* - Finished in state"
        other.wait_until(lambda: re.search(ends, other.said()))
        assert other.end(signal.SIGTERM) == 0
    finally:
        for each in workers:
            each.process.kill()
    store = store_of(tmp_path)
    run = only_run(store)
    assert run.info.status == "FINISHED"
    steps = [metric.step for metric in store.get_metric_history(run.info.run_id, "train/loss")]
    assert (len(steps), len(set(steps))) == (20, 20)
