"""Steps that a warm start needs to reach a cold run's accuracy, after a tenth more images.

python -m benchmarks.warm_start [SEEDS] [--data FOLDER --images N --recipe FILE]

A first run trains on ten elevenths of the images. Then all of them are trained on twice: from
random weights, and from the first run's weights with the settings of a warm start. The images are
the built-in digits, or N (500) of each class folder of FOLDER, such as CIFAR-10's train; FILE has
settings for all three training runs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion
from pipeline.initial_weights.recipe import WARM_START
from pipeline.initial_weights.starting_point import starting_point
from pipeline.training.launching import job_of
from pipeline.training.machine import MODULE
from pipeline.training.train_result import TrainResult
from pipeline.workers.worker_process import run_worker

_NEW = 11  # every eleventh image is new
_NAME = "images"
_DIGITS = {"mirror_symmetric": False}


@dataclass(frozen=True)
class Task:
    """Two versions of the data, and settings for every training."""

    folder: Path
    everything: Path
    earlier: Path
    settings: dict[str, Any]


def main() -> None:
    """Print the accuracies and the steps of each seed, and the mean ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int, nargs="?", default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--recipe", type=Path)
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    settings: dict[str, Any] = {}
    if given.recipe:
        settings = yaml.safe_load(given.recipe.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        folder = Path(name)
        if given.data:
            everything = _first_of(given.data.resolve(), given.images, folder / "images")
        else:
            settings = config_files.merged(settings, {"data": {"options": _DIGITS}})
            ingestion.ingest(config_files.validated({}), folder / "digits")
            [everything] = (folder / "digits" / "sources").iterdir()
        earlier = _without_new(everything, folder / "earlier")
        task = Task(folder, everything, earlier, settings)
        ratios = [_ratio(task, seed) for seed in range(given.seeds)]
    print(f"mean ratio of the steps: {statistics.mean(ratios):.2f}")


def _first_of(data: Path, images: int, folder: Path) -> Path:
    """Copy the first images of each class folder."""
    for label in sorted(each for each in data.iterdir() if each.is_dir()):
        (folder / label.name).mkdir(parents=True)
        for file in sorted(label.iterdir())[:images]:
            shutil.copy(file, folder / label.name / file.name)
    return folder


def _without_new(everything: Path, folder: Path) -> Path:
    files = sorted(each for each in everything.rglob("*") if each.is_file())
    for number, file in enumerate(files):
        if number % _NEW:
            target = folder / file.relative_to(everything)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    return folder


def _ratio(task: Task, seed: int) -> float:
    first = _trained(task, task.earlier, f"first-{seed}", {"seed": seed})
    cold = _trained(task, task.everything, f"cold-{seed}", {"seed": seed + 1000})
    start = {"model": {"init": str(first.best / "model.safetensors")}, "seed": seed + 2000}
    settings = config_files.merged(WARM_START, start)
    settings = config_files.merged(settings, {"training": {"trainable": "all"}})
    warm = _trained(task, task.everything, f"warm-{seed}", settings)
    wanted = cold.history[-1].validation_accuracy or 0.0
    reached = [each.step for each in warm.history if (each.validation_accuracy or 0) >= wanted]
    steps = reached[0] if reached else float("inf")
    print(
        f"seed {seed}: cold {wanted:.1%} after {cold.steps} steps; warm reaches it after {steps}, "
        f"{warm.history[-1].validation_accuracy:.1%} after {warm.steps}",
        flush=True,
    )
    return steps / cold.steps


def _trained(task: Task, images: Path, name: str, changes: dict[str, Any]) -> TrainResult:
    asked = config_files.merged({"name": _NAME, "data": {"path": str(images)}}, task.settings)
    asked = config_files.merged(asked, changes)
    config, workspace = config_files.validated(asked), task.folder / "work"
    data = ingestion.ingest(config, workspace)
    if config.model.init:
        config = starting_point(config, _NAME, workspace).config
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    job = job_of(config, data, prepared, task.folder / name, "benchmark", workspace)
    return run_worker(MODULE, job.folder, job, TrainResult, lambda _: None)


if __name__ == "__main__":
    main()
