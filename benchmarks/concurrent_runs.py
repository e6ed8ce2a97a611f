"""Start many training runs at the same moment on the servers of one folder, and count every metric.

    python -m benchmarks.concurrent_runs [RUNS]

Eight by default. `patchline up` serves its SQLite files; each run is a separate `patchline run`
with its own seed. The benchmark prints the seconds, and fails if a run fails, if a version is
missing, or if a metric of a step is missing or logged twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measured_runs import PATCHLINE, machine
from pipeline import quiet_libraries
from pipeline.tracking.tracking_store import client
from pipeline.workers.event_log import read_events

_SETTINGS = ("--training.epochs", "6", "--model.embed-dim", "48", "--model.num-heads", "3")


def main() -> None:
    """Run it in an empty folder."""
    quiet_libraries.apply()
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print(machine())
    os.chdir(tempfile.mkdtemp(prefix="patchline-at-once-"))
    subprocess.run([str(PATCHLINE), "up"], check=True, stdout=subprocess.DEVNULL)
    try:
        wrong = _measured(runs)
    finally:
        subprocess.run([str(PATCHLINE), "down", "--now"], check=False)
    print("\n".join(wrong) or "every run finished, every metric was logged exactly once")
    sys.exit(bool(wrong))


def _measured(runs: int) -> list[str]:
    """Start the runs, wait for all, and return what is wrong."""
    began = time.monotonic()
    processes = [
        subprocess.Popen(
            [str(PATCHLINE), "run", *_SETTINGS, "--seed", str(seed), "--json"],
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


if __name__ == "__main__":
    main()
