"""Steps that a warm start needs to reach a cold run's accuracy, after a tenth more images.

python -m benchmarks.warm_start [SEEDS]

A first run trains on ten elevenths of the built-in digits. Then all of them are trained on twice:
from random weights, and from the first run's weights with the settings of a warm start.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion
from pipeline.initial_weights.recipe import WARM_START
from pipeline.initial_weights.stage import starting_point
from pipeline.training.launching import job_of
from pipeline.training.machine import MODULE
from pipeline.training.train_result import TrainResult
from pipeline.workers.worker_process import run_worker

_NEW = 11  # every eleventh image is new


def main(seeds: int = 1) -> None:
    """Print the accuracies and the steps of each seed, and the mean ratio."""
    quiet_libraries.apply()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        folder = Path(name)
        ingestion.ingest(config_files.validated({}), folder / "digits")
        [everything] = (folder / "digits" / "sources").iterdir()
        earlier = _without_new(everything, folder / "earlier")
        ratios = [_ratio(folder, everything, earlier, seed) for seed in range(seeds)]
    print(f"mean ratio of the steps: {statistics.mean(ratios):.2f}")


def _without_new(everything: Path, folder: Path) -> Path:
    for number, file in enumerate(sorted(everything.rglob("*.png"))):
        if number % _NEW:
            target = folder / file.relative_to(everything)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return folder


def _ratio(folder: Path, everything: Path, earlier: Path, seed: int) -> float:
    first = _trained(folder, earlier, f"first-{seed}", {"seed": seed})
    cold = _trained(folder, everything, f"cold-{seed}", {"seed": seed + 1000})
    start = {"model": {"init": str(first.best / "model.safetensors")}, "seed": seed + 2000}
    settings = config_files.merged(WARM_START, start)
    settings = config_files.merged(settings, {"training": {"trainable": "all"}})
    warm = _trained(folder, everything, f"warm-{seed}", settings)
    wanted = cold.history[-1].validation_accuracy or 0.0
    reached = [each.step for each in warm.history if (each.validation_accuracy or 0) >= wanted]
    steps = reached[0] if reached else float("inf")
    print(
        f"seed {seed}: cold {wanted:.1%} after {cold.steps} steps; warm reaches it after {steps}, "
        f"{warm.history[-1].validation_accuracy:.1%} after {warm.steps}",
        flush=True,
    )
    return steps / cold.steps


def _trained(folder: Path, images: Path, name: str, changes: dict[str, Any]) -> TrainResult:
    data_settings = {"path": str(images), "options": {"mirror_symmetric": False}}
    asked = config_files.merged({"name": "digits", "data": data_settings}, changes)
    config, workspace = config_files.validated(asked), folder / "work"
    data = ingestion.ingest(config, workspace)
    if config.model.init:
        config = starting_point(config, "digits", workspace).config
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    job = job_of(config, data, prepared, folder / name, "benchmark", workspace)
    return run_worker(MODULE, job.folder, job, TrainResult, lambda _: None)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
