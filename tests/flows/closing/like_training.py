"""A flow that is to Prefect and MLflow what the training flow is, without the training.

Run as a program: `python like_training.py WHAT`, in the folder that gets `.patchline`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from prefect import flow, tags, task
from prefect.runtime import flow_run

from patchline.flows.closing import close_runs
from patchline.pipeline.registry import registration
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking import tracked_run


@task
def work() -> None:
    """Take long."""
    time.sleep(600)


@flow(
    name="Train and register",
    on_crashed=[close_runs.on_crashed],
    on_cancellation=[close_runs.on_cancellation],
)
def like_training(what: str) -> None:
    """Open a run with a model, and say so; then work, or end and linger in a run that has begun."""
    workspace = Path(".patchline").resolve()
    if what == "begins":
        sys.stdout.write(f"at work {flow_run.id} -\n")
        sys.stdout.flush()
        time.sleep(600)
    with live_runs.alive(workspace, str(flow_run.id), "training"):
        tags = {tracked_run.FLOW_RUN_TAG: str(flow_run.id)}
        new = tracked_run.NewRun("like-training", "run", "test", {}, tags)
        with tracked_run.open_run(new, workspace / "runs") as run:
            registration.find_logged_model(run, "like-training")
            if what == "works":
                _say(run)
                work()
    if what == "lingers":
        _say(run)
        like_training("begins")


@flow(name="Train when new")
def parent(what: str) -> None:
    """Train as a sub-flow."""
    with live_runs.alive(Path(".patchline").resolve(), str(flow_run.id), "watch"):
        like_training(what)


def _say(run: tracked_run.TrackedRun) -> None:
    sys.stdout.write(f"at work {flow_run.id} {run.run_id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "sub-flow works":
        parent("works")
    else:
        with live_runs.owner(Path(".patchline")) as owner, tags(owner):
            like_training(sys.argv[1])
