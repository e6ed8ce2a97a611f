"""What a teacher and unlabelled images bring, and how much faster the student is.

python -m benchmarks.distillation DATA [--weights FILE] [--trainable last_blocks] [--side 112]
                                  [--labels 15] [--tests 100] [--unlabelled 1350]
                                  [--minutes 3] [--only teacher taught-unlabelled] [--keep DIR]

DATA is a folder or a zip with `train` and `test`, each with a folder for each class, such as
CIFAR-10. Of each class, so many training images keep their labels, and so many test images are
used; the unlabelled images are drawn evenly from the other training images.

A teacher is trained on the labelled images: from the weights in FILE at so many pixels, or from
random ones without a file. Then three models are planned and trained from random weights for so
many minutes each: on the labels alone, with the teacher, and with the teacher and the unlabelled
images. At last the packages of teacher and student predict the same images in turn. With --only,
some of the models are left out; a student needs its teacher, or a DIR that has it. A second command
with the same DIR does only the runs that are not there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from benchmarks.measured_runs import machine, measure_run
from patchline.pipeline.models.model_description import DESCRIPTION_FILE
from patchline.pipeline.packaging.package_files import ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel

RUNS = ("teacher", "labels", "taught-unlabelled", "taught")
_BATCH, _ROUNDS = 32, 7


def _images(data: Path) -> dict[tuple[str, str], list[str]]:
    """Return the paths of the images of each split and class, sorted."""
    if data.is_dir():
        paths = [path.relative_to(data).as_posix() for path in data.rglob("*.*")]
    else:
        with zipfile.ZipFile(data) as archive:
            paths = [name for name in archive.namelist() if not name.endswith("/")]
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(paths):
        *_, split, label, _name = PurePosixPath(path).parts
        found[split, label].append(path)
    return found


def _contents(data: Path, paths: list[str]) -> Iterator[bytes]:
    if data.is_dir():
        yield from ((data / path).read_bytes() for path in paths)
        return
    with zipfile.ZipFile(data) as archive:
        yield from (archive.read(path) for path in paths)


def _copy(data: Path, paths: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, _contents(data, paths), strict=True):
        name = "-".join(PurePosixPath(path).parts[-2:])  # files of several classes in one folder
        (folder / name).write_bytes(content)


def lay_out(data: Path, folder: Path, labels: int, tests: int, unlabelled: int) -> None:
    """Write `labelled/train`, `labelled/test` and `unlabelled` into a folder."""
    images = _images(data)
    classes = sorted({label for split, label in images if split == "train"})
    each = unlabelled // len(classes)
    for label in classes:
        train, test = images["train", label], images["test", label]
        _copy(data, train[:labels], folder / "labelled" / "train" / label)
        _copy(data, test[:tests], folder / "labelled" / "test" / label)
        _copy(data, train[labels : labels + each], folder / "unlabelled")


def images_per_second(packages: list[Path]) -> list[list[float]]:
    """Return how many images each package predicts in a second, in turn, in several rounds."""
    models = [PackagedModel(each / ONNX_FILE, each / DESCRIPTION_FILE) for each in packages]
    rates: list[list[float]] = [[] for _ in models]
    for number in range(_ROUNDS + 1):
        for model, found in zip(models, rates, strict=True):
            spec = model.image
            shape = (_BATCH, spec["height"], spec["width"], spec["channels"])
            pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
            began = time.perf_counter()
            model.probabilities(pixels)
            if number:  # the first round warms up
                found.append(_BATCH / (time.perf_counter() - began))
    return rates


def _run_once(folder: Path, name: str, *settings: str) -> dict[str, Any]:
    """Return the summary of a run, which an earlier command may have left in the folder."""
    file = folder / f"{name}.json"
    if not file.exists():
        summary = measure_run("labelled", "--name", name, *settings, folder=folder)
        file.write_text(json.dumps(summary), encoding="utf-8")
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def _row(name: str, summary: dict[str, Any]) -> str:
    accuracy = summary["metrics"]["test/accuracy"]
    trained = summary["training"]
    return (
        f"{name:<32} {accuracy['value']:6.1%} ({accuracy['low']:.1%} to {accuracy['high']:.1%}, "
        f"n={accuracy['n']:,})  {trained['parameters'] / 1e6:6.2f} M parameters, "
        f"{trained['steps']:,} steps, {summary['wall_seconds']:,.0f} s"
    )


def main() -> None:
    """Train the teacher and the three students, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--trainable", default="last_blocks")
    parser.add_argument("--side", type=int, default=112)
    parser.add_argument("--labels", type=int, default=15)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--unlabelled", type=int, default=1350)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    without_teacher = "teacher" not in given.only and any("taught" in each for each in given.only)
    if without_teacher and not (given.keep and (given.keep / "teacher.json").is_file()):
        parser.error(
            "no teacher is kept for a student: add teacher to --only, or its DIR as --keep"
        )
    folder = given.keep or Path(tempfile.mkdtemp(prefix="patchline-distillation-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "labelled").exists():
        lay_out(given.data, folder, given.labels, given.tests, given.unlabelled)
    print(machine())
    plain = ("--evaluation.explanations=false", "--promotion.approval=true")
    start: tuple[str, ...] = ("--training.time-limit", f"{given.minutes}m")
    if given.weights:
        weights = str(given.weights.resolve())
        start = ("--model.init", weights, "--training.trainable", given.trainable)
        start = (*start, "--data.image-size", str(given.side), "--preset", "none")
    taught = ("--training.teacher", "teacher/1")
    runs = {
        "teacher": start,
        "labels": (),
        "taught-unlabelled": (*taught, "--data.unlabelled", "unlabelled"),
        "taught": taught,
    }
    limit = ("--training.time-limit", f"{given.minutes}m", "--model.init", "none")
    packages: dict[str, Path] = {}
    for name, own in runs.items():
        if name not in given.only:
            continue
        settings = own if name == "teacher" else (*limit, *own)
        summary = _run_once(folder, name, *settings, *plain)
        packages[name] = folder / Path(summary["config"]).parent / "package"
        print(_row(name, summary), flush=True)
    if not {"teacher", "taught-unlabelled"} <= packages.keys():
        return
    slow, fast = images_per_second([packages["teacher"], packages["taught-unlabelled"]])
    ratio = statistics.median(b / a for a, b in zip(slow, fast, strict=True))
    print(
        f"images/s of the packages: teacher {statistics.median(slow):,.0f}, student "
        f"{statistics.median(fast):,.0f}, {ratio:.1f} times as many (median of {_ROUNDS} rounds, "
        f"batches of {_BATCH})"
    )


if __name__ == "__main__":
    main()
