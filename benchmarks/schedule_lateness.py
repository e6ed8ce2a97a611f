"""How late scheduled runs start: `patchline up`, ten interval schedules, ten firings each.

python -m benchmarks.schedule_lateness [SCHEDULES [FIRINGS [INTERVAL_SECONDS]]]

The lateness is the start of a run minus the time that it was due. Each run predicts a few images
with a small model, so that it is the scheduling that is measured; the schedules are spread evenly
over the interval, as those of a real week are. The runner starts two runs at a time.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import numpy as np
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule

from benchmarks.measured_runs import PATCHLINE, machine, measured_run
from flows.prefect_client import asking
from flows.prefect_session import connected
from flows.schedules import deployments
from flows.schedules.prediction_flow import predict_flow

_DEFAULTS = (10, 10, 120)
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_ENOUGH_SECONDS = 30.0
_LAST_RUNS_SECONDS = 60.0


def main() -> None:
    """Print the quantiles of the lateness in seconds, and the final states of the runs."""
    given = [int(argument) for argument in sys.argv[1:]]
    schedules, firings, interval = (*given, *_DEFAULTS[len(given) :])
    print(machine())
    print(f"{schedules} schedules, {firings} firings each, every {interval} s")
    os.chdir(tempfile.mkdtemp(prefix="patchline-lateness-"))
    print(f"folder {Path.cwd()}", flush=True)  # it stays, with the logs
    reference, images = _small_model()
    _patchline("up", "--json")
    try:
        with connected():
            runs = _fired(schedules, firings, interval, reference, images)
    finally:
        _patchline("down", "--now")
    _report(runs, schedules * firings)


def _small_model() -> tuple[str, Path]:
    """Return a model's version, and a folder of a few images that it can predict."""
    summary = measured_run("--training.epochs", "1", "--name", "small", folder=Path())
    images = Path("images").resolve()
    images.mkdir()
    example = Path(summary["example_image"])
    for number in range(4):
        (images / f"{number}{example.suffix}").write_bytes(example.read_bytes())
    return f"{summary['name']}/{summary['version']}", images


def _fired(
    schedules: int, firings: int, interval: int, reference: str, images: Path
) -> list[FlowRun]:
    """Create the schedules, wait for all firings, and return their runs."""
    every = dt.timedelta(seconds=interval)
    start = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_ENOUGH_SECONDS)
    ids = [
        deployments.deploy(
            predict_flow,
            f"schedule-{number}",
            parameters={
                "model": reference,
                "images": str(images),
                "out": str(images.parent / f"table-{number}.csv"),
            },
            schedule=IntervalSchedule(
                interval=every, anchor_date=start + every * number / schedules
            ),
            labels={deployments.KIND: "schedule"},
            description="",
        )
        for number in range(schedules)
    ]
    end = start + every * firings
    while (now := dt.datetime.now(dt.UTC)) < end:
        print(f"{(end - now).total_seconds():.0f} s to go", file=sys.stderr)
        time.sleep(min(30.0, (end - now).total_seconds()))
    time.sleep(_LAST_RUNS_SECONDS)
    return _runs(ids, start, end)


def _runs(ids: list[UUID], start: dt.datetime, end: dt.datetime) -> list[FlowRun]:
    """Return the runs that were due from the start to the end: an interval fires before it too."""
    moment = dt.timedelta(milliseconds=1)
    found: list[FlowRun] = []
    with asking() as client:
        for deployment_id in ids:
            wanted = FlowRunFilter(
                deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
                expected_start_time=FlowRunFilterExpectedStartTime(
                    after_=start - moment, before_=end - moment
                ),
            )
            found += client.read_flow_runs(flow_run_filter=wanted)
    return found


def _report(runs: list[FlowRun], expected: int) -> None:
    began = [run for run in runs if run.run_count and run.start_time and run.expected_start_time]
    late = [
        (run.start_time - run.expected_start_time).total_seconds()
        for run in began
        if run.start_time and run.expected_start_time
    ]
    print(f"runs: {len(runs)} of {expected}, {len(began)} started")
    print(json.dumps(Counter(str(run.state_name) for run in runs)))
    if late:
        for quantile in _QUANTILES:
            print(f"lateness, quantile {quantile:g}: {np.quantile(late, quantile):.1f} s")


def _patchline(*arguments: str) -> None:
    subprocess.run([str(PATCHLINE), *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
