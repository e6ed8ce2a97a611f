"""Images/s of one process with two threads and of two processes with one thread each, in turn.

python -m benchmarks.two_processes [SECONDS [ROUNDS]]

A ViT of width 192 and depth 9 trains in float32 on the built-in digits at 32 pixels, batch 128.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion
from pipeline.training.job import TrainingJob
from pipeline.training.launching import job_of
from pipeline.training.machine import MODULE
from pipeline.training.train_result import TrainResult
from pipeline.workers.worker_process import run_worker

_SETTINGS: dict[str, Any] = {
    "name": "digits",
    "data": {"image_size": 32},
    "model": {"name": "vit", "embed_dim": 192, "depth": 9, "num_heads": 3},
}
_TRAINING: dict[str, Any] = {
    "batch_size": 128,
    "threads": 2,
    "device": "cpu",
    "precision": "float32",
}


def main(seconds: int = 40, rounds: int = 2) -> None:
    """Print both rates of each round, and the ratio of their medians."""
    quiet_libraries.apply()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        for number in range(rounds):
            for processes, found in rates.items():
                job = _job(Path(folder), f"{processes}-{number}", processes, seconds)
                result = run_worker(MODULE, job.folder, job, TrainResult, lambda _: None)
                found.append(result.images_per_second)
                print(
                    f"{processes} x {2 // processes} threads: {found[-1]:.1f} images/s, "
                    f"{result.steps} steps; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    one, two = (statistics.median(found) for found in rates.values())
    print(f"median of {rounds}: {one:.1f} and {two:.1f} images/s, ratio {two / one:.2f}")


def _job(workspace: Path, name: str, processes: int, seconds: int) -> TrainingJob:
    training = {**_TRAINING, "processes": processes, "time_limit": f"{seconds}s"}
    config = config_files.validated({**_SETTINGS, "training": training})
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return job_of(config, data, prepared, workspace / name, "benchmark")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
