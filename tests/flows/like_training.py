"""A flow that is to Prefect and MLflow what the training flow is, without the training.

Run as a program: `python like_training.py WHAT`, in the folder that gets `.patchline`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from prefect import flow, task
from prefect.runtime import flow_run

from flows import closing
from pipeline import live_runs, tracking
from pipeline.registry import registering


@task
def work() -> None:
    """Take long."""
    time.sleep(600)


@flow(
    name="Train and register",
    on_crashed=[closing.on_crashed],
    on_cancellation=[closing.on_cancellation],
)
def like_training(what: str) -> None:
    """Open a run with a model, and say so; then work, or end and linger."""
    workspace = Path(".patchline").resolve()
    with live_runs.alive(workspace, str(flow_run.id), "training"):
        tags = {tracking.FLOW_RUN_TAG: str(flow_run.id)}
        new = tracking.NewRun("like-training", "run", "test", {}, tags)
        with tracking.open_run(new, workspace / "runs") as run:
            registering.create_logged_model(run, "like-training")
            if what == "works":
                _say(run)
                work()
            elif what == "fails":
                raise ValueError("it cannot be done")
    if what == "lingers":
        _say(run)
        time.sleep(600)


@flow(name="Train when new")
def parent(what: str) -> None:
    """Train as a sub-flow."""
    with live_runs.alive(Path(".patchline").resolve(), str(flow_run.id), "watch"):
        like_training(what)


def _say(run: tracking.TrackedRun) -> None:
    sys.stdout.write(f"at work {flow_run.id} {run.run_id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "sub-flow works":
        parent("works")
    else:
        like_training(sys.argv[1])
