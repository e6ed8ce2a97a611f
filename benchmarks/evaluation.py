"""Predicting for an evaluation, and writing its report, on few and on very many classes.

    python -m benchmarks.evaluation prediction [ROUNDS]
    python -m benchmarks.evaluation report
    python -m benchmarks.evaluation many-classes [CLASSES] [IMAGES]

`prediction` compares the images/s of an evaluation with a plain torch loop, in turn. Both predict
the digits, which are stored at 32 pixels, in float32 with the same random weights: a ViT of width
192 and depth 9 with patches of 4 pixels, and the model that plans choose for small images. The
plain loop: images in memory, normalised as torchvision's transforms do it, batches of 256,
inference mode. Patchline's side is that of `patchline run`: from the prepared store on disk.

`report` prints how long the report of 10,000 images in 10 classes takes beyond prediction, and how
large it is.

`many-classes` prints seconds and memory of a report on very many classes, part by part. By default
10,000 classes and 15,000 test images, as of 100,000 images of which 15% are tested. The memory is
the most that the process held beyond the predictions, which are float32.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from torch import nn

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.comparison import ComparisonSubject, compare
from patchline.pipeline.evaluation.comparison_page import write_comparison
from patchline.pipeline.evaluation.html_report import ReportContents, ReportPage, write_report
from patchline.pipeline.evaluation.metrics import classification
from patchline.pipeline.evaluation.metrics.calibration import TopProbabilities
from patchline.pipeline.evaluation.metrics.curve_areas import Areas
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, fit_temperature
from patchline.pipeline.evaluation.predictions import Predictions, with_probabilities
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject, evaluate
from patchline.pipeline.evaluation.tasks import SINGLE
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.device import make_repeatable
from patchline.plugin_api import ImageSpec

_BATCH = 256
_MODELS: dict[str, dict[str, Any]] = {
    "ViT 192x9": {"name": "vit", "embed_dim": 192, "depth": 9, "num_heads": 3},
    "early pooling, 192 wide": {
        "name": "vit",
        "embed_dim": 192,
        "depth": 1,
        "num_heads": 6,
        "mlp_dim": 384,
        "pooling": "average",
        "patch_embedding": {"name": "whitened", "num_halvings": 3, "early_pooling": True},
    },
}


def compare_prediction(given: argparse.Namespace) -> None:
    """Print the median rates and their ratio for each model."""
    make_repeatable(None)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        for name, model in _MODELS.items():
            _compare(name, model, Path(folder), given.rounds)


def _compare(name: str, chosen: dict[str, Any], workspace: Path, rounds: int) -> None:
    config = config_files.validate_config({"data": {"image_size": 32}, "model": chosen})
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    torch.manual_seed(0)
    model = build_model(config.model, prepared.image, len(data.classes)).eval()
    images = open_images(prepared.store)
    rows = np.arange(sum(data.counts.values()), dtype=np.int64)
    in_memory = torch.from_numpy(np.array(images[rows]))
    sides: dict[str, Callable[[], torch.Tensor]] = {
        "evaluation": lambda: predict_logits(model, images, rows, prepared.image),
        "plain loop": lambda: _plain(model, in_memory, prepared.image),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    answers = {side: predict() for side, predict in sides.items()}  # warms up
    torch.testing.assert_close(*answers.values(), atol=1e-3, rtol=1e-3)
    for _ in range(rounds):
        for side, predict in sides.items():
            began = time.perf_counter()
            predict()
            seconds[side].append(time.perf_counter() - began)
    ours, plain = (len(rows) / statistics.median(taken) for taken in seconds.values())
    print(
        f"{name}: median of {rounds}, evaluation {ours:,.0f} images/s, plain loop {plain:,.0f}, "
        f"ratio {ours / plain:.2f}",
        flush=True,
    )


@torch.inference_mode()
def _plain(model: nn.Module, images_NHWC: torch.Tensor, image: ImageSpec) -> torch.Tensor:
    mean_C11 = torch.tensor(image.mean).view(-1, 1, 1)
    std_C11 = torch.tensor(image.std).view(-1, 1, 1)
    found = []
    for start in range(0, len(images_NHWC), _BATCH):
        batch_BCHW = images_NHWC[start : start + _BATCH].permute(0, 3, 1, 2).float() / 255
        found.append(model((batch_BCHW - mean_C11) / std_C11))
    return torch.cat(found)


_IMAGES, _CLASSES, _SIDES = 10_000, 10, (32, 224)
_PHOTOS = 500


def time_report(_: argparse.Namespace) -> None:
    """Print a line for small images, and one for large ones."""
    values: list[Value] = []
    for side in _SIDES:
        rows, classes = _report_rows(np.random.default_rng(0))
        images = _photos(np.random.default_rng(1), side)
        with tempfile.TemporaryDirectory() as folder:
            seconds, page = _report(rows, classes, images, Path(folder))
            megabytes = page.stat().st_size / 1e6
        print(
            f"report of {_IMAGES} images of {side}x{side} in {_CLASSES} classes: {seconds:.1f} s, "
            f"HTML {megabytes:.2f} MB"
        )
        name = f"report of {_IMAGES:,} images of {side}x{side} in {_CLASSES} classes"
        values += [
            Value(name=name, value=seconds, unit="s", n=1),
            Value(name=f"{name}, page", value=megabytes, unit="MB", n=1),
        ]
    record("evaluation_report", *values)


def _report(
    rows: pd.DataFrame, classes: tuple[str, ...], images: np.ndarray[Any, Any], folder: Path
) -> tuple[float, Path]:
    began = time.perf_counter()
    table, fit = SINGLE.calibrated(rows, classes)
    report = evaluate(
        Predictions.of(table[table["split"] == "test"]),
        ReportSubject(name="benchmark", classes=classes, split="test", data_fingerprint=""),
        calibration=fit,
    )
    page = ReportPage(title="benchmark: test report", facts={}, notes=(), settings={})
    html = write_report(
        SINGLE.parts,
        report,
        ReportContents(page, table, lambda position: images[position % _PHOTOS]),
        folder,
    )
    return time.perf_counter() - began, html


def _report_rows(generator: np.random.Generator) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return 10,000 test and 5,000 validation rows, about nine in ten right."""
    count = _IMAGES + _IMAGES // 2
    classes = tuple(f"class {k}" for k in range(_CLASSES))
    labels = generator.integers(0, _CLASSES, count)
    logits = generator.normal(size=(count, _CLASSES)).astype(np.float32)
    logits[np.arange(count), labels] += 3.5
    sides = generator.integers(30, 2000, (count, 2))
    rows = pd.DataFrame(
        {
            "path": [f"{classes[label]}/{k:05d}.png" for k, label in enumerate(labels)],
            "sha256": [f"{k:064x}" for k in range(count)],
            "split": np.where(np.arange(count) < _IMAGES, "test", "validation"),
            "label": np.array(classes, dtype=object)[labels],
            "group": [f"camera {k % 40}" for k in range(count)],
            "mode": generator.choice(["RGB", "L"], count, p=[0.9, 0.1]),
            "width": sides[:, 0],
            "height": sides[:, 1],
            "bytes": sides.prod(axis=1),
            "row": np.arange(count),
            "logits": list(logits),
        }
    )
    return rows, classes


def _photos(generator: np.random.Generator, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return images that compress as photos do: coarse shapes with fine noise on them."""
    import cv2

    coarse = generator.integers(0, 256, (_PHOTOS, 6, 6, 3)).astype(np.uint8)
    smooth = np.stack([cv2.resize(image, (side, side)) for image in coarse])
    noise = generator.integers(-12, 13, (1, side, side, 3))
    photos: np.ndarray[Any, np.dtype[np.uint8]]
    photos = np.clip(smooth.astype(np.int16) + noise, 0, 255).astype(np.uint8)
    return photos


Array = np.ndarray[Any, Any]
_MANY, _TESTED = 10_000, 15_000
_STORED = 64
_MEGABYTE = 2**20


class Meter:
    """Measures parts by the clock, and by the memory of this process beyond a floor."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.floor = self.memory
        self.total = self.busy = 0.0
        self.most = 0

    @property
    def memory(self) -> int:
        """Resident bytes now."""
        return int(self.process.memory_info().rss)

    @contextmanager
    def part(self, name: str, *, counted: bool = True) -> Iterator[None]:
        """Print what a part took; one that is part of another is not counted twice."""
        done, peak = threading.Event(), [self.memory]

        def watch() -> None:
            while not done.wait(0.01):
                peak[0] = max(peak[0], self.memory)

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, busy = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
            done.set()
            watcher.join()
        beyond = peak[0] - self.floor
        print(
            f"{name:<28}{seconds:7.1f} s {busy:7.1f} s of CPU{beyond / _MEGABYTE:9.0f} MB",
            flush=True,
        )
        if counted:
            self.total += seconds
            self.busy += busy
            self.most = max(self.most, beyond)


def make_table(num_classes: int, images: int, seed: int = 0) -> tuple[pd.DataFrame, Array]:
    """Return a table of predictions, about seven in ten right, and the logits that they come from.

    The probabilities are float32 and in memory once.
    """
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, images)
    logits = np.empty((images, num_classes), np.float32)
    probabilities = np.empty((images, num_classes), np.float32)
    for rows in row_slices(logits.shape):
        part = generator.standard_normal(logits[rows].shape, np.float32)
        part[np.arange(len(part)), labels[rows]] += 4.5
        logits[rows], probabilities[rows] = part, classification.softmax(part)
    classes = class_names(num_classes)
    table = pd.DataFrame(
        {
            "path": [f"{classes[label]}/{k:06d}.png" for k, label in enumerate(labels)],
            "sha256": [f"{k:064x}" for k in range(images)],
            "split": "test",
            "label": np.array(classes, dtype=object)[labels],
            "group": [f"camera {k % 30}" for k in range(images)],
            "mode": "RGB",
            "width": generator.integers(30, 2000, images),
            "height": generator.integers(30, 2000, images),
            "bytes": generator.integers(10**3, 10**6, images),
        }
    )
    return with_probabilities(table, classes, probabilities), logits


def class_names(num_classes: int) -> tuple[str, ...]:
    """Return the names of so many classes."""
    return tuple(f"class {k:05d}" for k in range(num_classes))


def build_report(predictions: Predictions, num_classes: int) -> EvaluationReport:
    """Return the report of such predictions."""
    return evaluate(
        predictions,
        ReportSubject(
            name="benchmark",
            classes=class_names(num_classes),
            split="test",
            data_fingerprint="0" * 64,
        ),
        calibration=TemperatureFit(temperature=1.1, state="fitted"),
    )


def save_report(report: EvaluationReport, table: pd.DataFrame, folder: Path) -> Path:
    """Write the report with its files, and return the page."""
    images = np.random.default_rng(0).integers(0, 256, (_STORED, 64, 64, 3), dtype=np.uint8)
    page = ReportPage(title="benchmark: test report", facts={}, notes=(), settings={})
    contents = ReportContents(page, table, lambda k: images[k % _STORED])
    return write_report(SINGLE.parts, report, contents, folder)


def _parts(predictions: Predictions) -> dict[str, Callable[[], object]]:
    probabilities, labels = predictions.probabilities_NK, predictions.labels
    names = class_names(probabilities.shape[1])
    areas = Areas.of(probabilities[:2], np.array([0, 1]))
    return {
        "  areas of every class": lambda: Areas.of(probabilities, labels),
        "  metrics but areas": lambda: classification.metrics(probabilities, labels, areas),
        "  figures by class but areas": lambda: classification.by_class(
            probabilities, labels, names, areas
        ),
        "  uncalibrated": lambda: TopProbabilities.uncalibrated(
            probabilities, labels, TemperatureFit(temperature=1.1, state="fitted")
        ),
        "  galleries": lambda: (
            galleries.confident_errors(predictions),
            galleries.least_certain(predictions),
            galleries.likely_label_errors(predictions),
        ),
    }


def _write_comparison(table: pd.DataFrame, probabilities_NK: Array, folder: Path) -> Path:
    other_NK = np.roll(probabilities_NK, 1, axis=0)
    comparison = compare(
        ComparisonSubject(
            champion="benchmark/1",
            challenger="benchmark/2",
            classes=class_names(probabilities_NK.shape[1]),
            left_out={},
        ),
        paths=list(table["path"]),
        labels_N=table["label_index"].to_numpy(np.int64),
        champion_NK=other_NK,
        challenger_NK=probabilities_NK,
    )
    return write_comparison(comparison, None, folder, None)


def measure_many_classes(given: argparse.Namespace) -> None:
    """Print a line a part, and the sum."""
    num_classes, images = given.classes, given.images
    print(f"{num_classes:,} classes, {images:,} images")
    import matplotlib.figure  # noqa: F401 - its import is not what is measured

    with tempfile.TemporaryDirectory(prefix="patchline-") as name:
        folder = Path(name)
        table, logits = make_table(num_classes, images)
        meter = Meter()
        with meter.part("temperature"):
            fit_temperature(logits, table["label_index"].to_numpy(np.int64))
        del logits
        meter.floor = meter.memory
        with meter.part("predictions from a table"):
            predictions = Predictions.of(table)
        for part, work in _parts(predictions).items():
            with meter.part(part, counted=False):
                work()
        with meter.part("report, of all these"):
            report = build_report(predictions, num_classes)
        with meter.part("files: page, JSON, Parquet"):
            html = save_report(report, table, folder)
        for file in sorted(folder.iterdir()):
            print(f"  {file.name:<30}{file.stat().st_size / _MEGABYTE:9.1f} MB")
        with meter.part("comparison of two versions"):
            _write_comparison(table, predictions.probabilities_NK, folder)
        print(
            f"{'together':<28}{meter.total:7.1f} s {meter.busy:7.1f} s of CPU"
            f"{meter.most / _MEGABYTE:9.0f} MB at most"
        )
        print(f"{html.name} has {html.stat().st_size / _MEGABYTE:.1f} MB")


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    prediction = commands.add_parser("prediction")
    prediction.add_argument("rounds", type=int, nargs="?", default=5)
    prediction.set_defaults(measure=compare_prediction)
    commands.add_parser("report").set_defaults(measure=time_report)
    many_classes = commands.add_parser("many-classes")
    many_classes.add_argument("classes", type=int, nargs="?", default=_MANY)
    many_classes.add_argument("images", type=int, nargs="?", default=_TESTED)
    many_classes.set_defaults(measure=measure_many_classes)
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    given.measure(given)


if __name__ == "__main__":
    main()
