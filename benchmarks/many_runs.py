"""Many runs on the servers of `patchline up`: at the same moment, or on schedules.

    python -m benchmarks.many_runs concurrent [RUNS]
    python -m benchmarks.many_runs scheduled [SCHEDULES [FIRINGS [INTERVAL_SECONDS]]]

`concurrent` starts eight training runs, or RUNS, at the same moment on the SQLite files of one
folder; each is a separate `patchline run` with its own seed. It prints the seconds, and fails if a
run fails, if a version is missing, or if a metric of a step is missing or logged twice.

`scheduled` prints how late the runs of ten interval schedules start, ten firings each: the start of
a run minus the time that it was due. Each run predicts a few images with a small model, so that it
is the scheduling that is measured; the schedules are spread evenly over the interval, as those of a
real week are. The runner starts two runs at a time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule

from benchmarks.measured_runs import PATCHLINE, machine, measure_run
from patchline.flows.prefect_api.prefect_client import open_client
from patchline.flows.prefect_session import connect
from patchline.flows.schedules import deployments
from patchline.flows.schedules.prediction_flow import predict_flow
from patchline.pipeline import quiet_libraries
from patchline.pipeline.workers.event_log import read_events
from patchline.pipeline.workspace.tracking.tracking_store import client

_SMALL = (
    *("--preset", "none", "--training.epochs", "6"),
    *("--model.embed-dim", "48", "--model.num-heads", "3"),
)


def run_at_once(given: argparse.Namespace) -> None:
    """Run it in an empty folder."""
    os.chdir(tempfile.mkdtemp(prefix="patchline-at-once-"))
    _patchline("up")
    try:
        wrong = _wrong_runs(given.runs)
    finally:
        subprocess.run([str(PATCHLINE), "down", "--now"], check=False)
    print("\n".join(wrong) or "every run finished, every metric was logged exactly once")
    sys.exit(bool(wrong))


def _wrong_runs(runs: int) -> list[str]:
    """Start the runs, wait for all, and return what is wrong."""
    began = time.monotonic()
    processes = [
        subprocess.Popen(
            [str(PATCHLINE), "run", *_SMALL, "--seed", str(seed), "--json"],
            stdout=subprocess.PIPE,
            stderr=Path(f"{seed}.log").open("wb"),  # noqa: SIM115 - it lives as long as the run
        )
        for seed in range(runs)
    ]
    answers = [process.communicate()[0] for process in processes]
    print(f"{runs} runs: {time.monotonic() - began:.0f} s")
    wrong = []
    versions = []
    for seed, (process, answer) in enumerate(zip(processes, answers, strict=True)):
        if process.returncode:
            last = Path(f"{seed}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
            wrong.append(f"run {seed} ended with code {process.returncode}: {last}")
            continue
        summary = json.loads(answer)
        versions.append(summary["version"])
        wrong += _wrong_metrics(summary)
    if len(set(versions)) != runs:
        wrong.append(f"{len(set(versions))} versions of {runs} runs")
    return wrong


def _wrong_metrics(summary: dict[str, Any]) -> list[str]:
    """Compare the metrics in the training's events with those in MLflow."""
    run_id = summary["run_id"]
    events = read_events(Path(summary["config"]).parent / "training" / "events.jsonl")
    written = Counter(
        (key, event["step"])
        for event in events
        if event["kind"] == "metrics"
        for key in event["values"]
    )
    store = client()
    kept = Counter(
        (key, metric.step)
        for key in {key for key, _ in written}
        for metric in store.get_metric_history(run_id, key)
    )
    return [
        f"run {run_id}: {key} of step {step} was logged {kept[key, step]} times, not {count}"
        for (key, step), count in written.items()
        if kept[key, step] != count
    ]


_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_ENOUGH_SECONDS = 30.0
_LAST_RUNS_SECONDS = 60.0


def run_schedules(given: argparse.Namespace) -> None:
    """Print the quantiles of the lateness in seconds, and the final states of the runs."""
    schedules, firings, interval = given.schedules, given.firings, given.interval
    print(f"{schedules} schedules, {firings} firings each, every {interval} s")
    os.chdir(tempfile.mkdtemp(prefix="patchline-lateness-"))
    print(f"folder {Path.cwd()}", flush=True)  # it stays, with the logs
    reference, images = _small_model()
    _patchline("up", "--json")
    try:
        with connect():
            runs = _fire(schedules, firings, interval, reference, images)
    finally:
        _patchline("down", "--now")
    _report(runs, schedules * firings)


def _small_model() -> tuple[str, Path]:
    """Return a model's version, and a folder of a few images that it can predict."""
    summary = measure_run(
        "--preset", "none", "--training.epochs", "1", "--name", "small", folder=Path()
    )
    images = Path("images").resolve()
    images.mkdir()
    example = Path(summary["example_image"])
    for number in range(4):
        (images / f"{number}{example.suffix}").write_bytes(example.read_bytes())
    return f"{summary['name']}/{summary['version']}", images


def _fire(
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
    with open_client() as client:
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


def main() -> None:
    """Start the runs that the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    concurrent = commands.add_parser("concurrent")
    concurrent.add_argument("runs", type=int, nargs="?", default=8)
    concurrent.set_defaults(measure=run_at_once)
    scheduled = commands.add_parser("scheduled")
    for name, default in (("schedules", 10), ("firings", 10), ("interval", 120)):
        scheduled.add_argument(name, type=int, nargs="?", default=default)
    scheduled.set_defaults(measure=run_schedules)
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine())
    given.measure(given)


if __name__ == "__main__":
    main()
