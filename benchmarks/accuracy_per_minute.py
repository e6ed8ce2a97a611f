"""Train on the same images for the same minutes with Patchline, Ultralytics and timm, in turn.

    python -m benchmarks.accuracy_per_minute DATA --minutes 20 [--image-size 32]
        [--sides patchline defaults ultralytics timm] [--peers PYTHON] [--timm-train FILE]

DATA holds train/ and test/ with one folder of images for each class. PYTHON is the interpreter of
an environment with `ultralytics` and `timm`; FILE is timm's own `train.py`, which its package does
not contain. Each side starts from random weights, gets its own defaults for the rest, one seed, and
nobody else's processes beside it. Ultralytics is `yolo11n-cls` with its own time limit. timm is
ViT-Tiny in bfloat16. It has no time limit, so a tenth of an epoch is timed, and the schedule gets
the number of epochs that comes closest to the minutes. The minutes of the others are those of
training and validation; Patchline's time limit is that of the whole command.

The accuracy is that on test/, of the weights that each side keeps. Patchline holds validation
images back from train/; the others choose their best epoch on test/ itself, which favours them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measured_runs import machine, measure_run
from benchmarks.results import Value, record
from patchline.pipeline.evaluation.metrics.intervals import proportion

_ULTRALYTICS = """\
import json, sys
from ultralytics import YOLO
data, hours, size, folder = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
model = YOLO("yolo11n-cls.yaml")
model.train(data=data, time=hours, imgsz=size, device="cpu", project=folder, pretrained=False,
            amp=False, seed=0, plots=False, workers=2)
found = model.val(data=data, split="test", imgsz=size, device="cpu", plots=False)
print(json.dumps({"accuracy": float(found.top1)}))
"""
_TIMM_MODEL = "vit_tiny_patch16_224"
_PATCHES_A_SIDE = 8


@dataclass(frozen=True)
class Task:
    """What every side gets."""

    data: Path
    minutes: float
    image_size: int
    peers: Path
    timm_train: Path | None
    folder: Path

    @property
    def classes(self) -> int:
        """Number of class folders."""
        return sum(each.is_dir() for each in (self.data / "train").iterdir())

    @property
    def test_images(self) -> int:
        """Number of images in test/."""
        return sum(each.is_file() for each in (self.data / "test").rglob("*"))


def _patchline(task: Task) -> float:
    return _ours(task, "--model.init", "none")


def _defaults(task: Task) -> float:
    return _ours(task, "--preset", "none", "--data.image-size", str(task.image_size))


def _ours(task: Task, *flags: str) -> float:
    limit = f"{task.minutes * 60:.0f}s"
    summary = measure_run(str(task.data), "--training.time-limit", limit, *flags)
    return float(summary["metrics"]["test/accuracy"]["value"])


def _ultralytics(task: Task) -> float:
    script = task.folder / "train_yolo.py"
    script.write_text(_ULTRALYTICS, encoding="utf-8")
    hours = task.minutes / 60
    arguments = [str(task.data), str(hours), str(task.image_size), str(task.folder / "yolo")]
    printed = _output(task, [str(script), *arguments])
    return float(json.loads(printed.splitlines()[-1])["accuracy"])


def _timm(task: Task) -> float:
    if task.timm_train is None:
        raise SystemExit("timm's train.py is missing. Give its path with --timm-train.")
    tenth = _tenth_of(task.data, task.folder / "tenth")
    began = time.monotonic()
    _timm_epochs(task, tenth, 1)
    once = time.monotonic() - began
    _timm_epochs(task, tenth, 2)
    seconds = (time.monotonic() - began - 2 * once) * 10  # of an epoch, without the start
    epochs = max(1, round(task.minutes * 60 / seconds))
    print(f"timm: an epoch takes about {seconds:.0f} s; {epochs} epochs", flush=True)
    return _timm_epochs(task, task.data, epochs)


def _tenth_of(data: Path, folder: Path) -> Path:
    """Copy every tenth image of each class."""
    for split in ("train", "test"):
        for label in sorted(each for each in (data / split).iterdir() if each.is_dir()):
            target = folder / split / label.name
            target.mkdir(parents=True)
            for file in sorted(label.iterdir())[::10]:
                shutil.copy(file, target / file.name)
    return folder


def _timm_epochs(task: Task, data: Path, epochs: int) -> float:
    """Train with timm's script for a number of epochs; return the best accuracy on test/."""
    size, name = task.image_size, f"{data.name}-{epochs}"
    _output(
        task,
        [
            str(task.timm_train), "--data-dir", str(data), "--train-split", "train",
            "--val-split", "test", "--model", _TIMM_MODEL, "--img-size", str(size),
            "--model-kwargs", f"patch_size={size // _PATCHES_A_SIDE}", f"img_size={size}",
            "--num-classes", str(task.classes), "--device", "cpu", "--opt", "adamw",
            "--lr", "1e-3", "--weight-decay", "0.05", "--warmup-epochs", "1" if epochs > 1 else "0",
            "--epochs", str(epochs), "--cooldown-epochs", "0", "--sched-on-updates", "--seed", "0",
            "--amp", "--amp-dtype", "bfloat16",
            "--workers", "1", "--output", str(task.folder), "--experiment", name,
        ],
    )  # fmt: skip
    with (task.folder / name / "summary.csv").open(encoding="utf-8") as lines:
        return max(float(row["eval_top1"]) for row in csv.DictReader(lines)) / 100


def _output(task: Task, arguments: list[str]) -> str:
    environment = {**os.environ, "YOLO_OFFLINE": "true", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(task.peers), *arguments],
        cwd=task.folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


SIDES: dict[str, tuple[str, Callable[[Task], float]]] = {
    "patchline": ("Patchline", _patchline),
    "defaults": ("Patchline without a preset", _defaults),
    "ultralytics": ("Ultralytics yolo11n-cls", _ultralytics),
    "timm": ("timm train.py, ViT-Tiny", _timm),
}


def main() -> None:
    """Train each side; print and record its accuracy and wall-clock time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["patchline", "ultralytics"])
    parser.add_argument("--peers", type=Path, default=Path(sys.executable))
    parser.add_argument("--timm-train", type=Path)
    given = parser.parse_args()
    print(f"{machine()}\n{given.minutes:g} minutes, {given.image_size} pixels", flush=True)
    values: list[Value] = []
    for side in given.sides:
        name, train = SIDES[side]
        with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
            script = given.timm_train.resolve() if given.timm_train else None
            task = Task(
                data=given.data.resolve(),
                minutes=given.minutes,
                image_size=given.image_size,
                peers=given.peers.absolute(),
                timm_train=script,
                folder=Path(folder),
            )
            began = time.monotonic()
            accuracy = train(task)
            seconds = time.monotonic() - began
        print(f"{name:<26} test accuracy {accuracy:.2%}, {seconds:.0f} s in all", flush=True)
        estimate = proportion(round(accuracy * task.test_images), task.test_images)
        values.append(Value.of_metric(f"{name}, test accuracy", estimate.model_dump()))
        values.append(Value(name=f"{name}, whole command", value=seconds, unit="s", n=1))
    record(f"accuracy_per_minute_{given.data.resolve().name.lower()}", *values)


if __name__ == "__main__":
    main()
