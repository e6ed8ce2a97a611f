"""Seconds and memory of a report on very many classes, part by part.

python -m benchmarks.many_classes [CLASSES] [IMAGES]

By default 10,000 classes and 15,000 test images, as of 100,000 images of which 15% are tested. The
memory is the most that the process held beyond the predictions, which are float32.
"""

from __future__ import annotations

import sys
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

from benchmarks.measured_runs import machine
from pipeline.evaluation import galleries
from pipeline.evaluation.comparison import compare
from pipeline.evaluation.comparison_page import write_comparison
from pipeline.evaluation.evaluating import write_report
from pipeline.evaluation.html_report import ReportPage
from pipeline.evaluation.predictions import Predictions, with_probabilities
from pipeline.evaluation.report import EvaluationReport, evaluate
from pipeline.metrics import classification
from pipeline.metrics.calibration import Answers
from pipeline.metrics.class_areas import Areas
from pipeline.metrics.row_pieces import row_slices
from pipeline.metrics.temperature import TemperatureFit, fit_temperature

Array = np.ndarray[Any, Any]
CLASSES, IMAGES = 10_000, 15_000
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


def made_table(num_classes: int, images: int, seed: int = 0) -> tuple[pd.DataFrame, Array]:
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


def reported(predictions: Predictions, num_classes: int) -> EvaluationReport:
    """Return the report of such predictions."""
    return evaluate(
        predictions,
        name="benchmark",
        classes=class_names(num_classes),
        split="test",
        data_fingerprint="0" * 64,
        calibration=TemperatureFit(temperature=1.1, state="fitted"),
    )


def written(report: EvaluationReport, table: pd.DataFrame, folder: Path) -> Path:
    """Write the report with its files, and return the page."""
    images = np.random.default_rng(0).integers(0, 256, (_STORED, 64, 64, 3), dtype=np.uint8)
    page = ReportPage(title="benchmark: test report", facts={}, notes=(), settings={})
    return write_report(report, page, table, lambda k: images[k % _STORED], folder)


def _parts(predictions: Predictions) -> dict[str, Callable[[], object]]:
    probabilities, labels = predictions.probabilities_NK, predictions.labels_N
    names = class_names(probabilities.shape[1])
    areas = Areas.of(probabilities[:2], np.array([0, 1]))
    return {
        "  areas of every class": lambda: Areas.of(probabilities, labels),
        "  metrics but areas": lambda: classification.metrics(probabilities, labels, areas),
        "  figures by class but areas": lambda: classification.by_class(
            probabilities, labels, names, areas
        ),
        "  uncalibrated": lambda: Answers.uncalibrated(probabilities, labels, 1.1),
        "  galleries": lambda: (
            galleries.confident_errors(predictions),
            galleries.least_certain(predictions),
            galleries.likely_label_errors(predictions),
        ),
    }


def _compared(table: pd.DataFrame, probabilities_NK: Array, folder: Path) -> Path:
    other_NK = np.roll(probabilities_NK, 1, axis=0)
    comparison = compare(
        champion="benchmark/1",
        challenger="benchmark/2",
        classes=class_names(probabilities_NK.shape[1]),
        paths=list(table["path"]),
        labels_N=table["label_index"].to_numpy(np.int64),
        champion_NK=other_NK,
        challenger_NK=probabilities_NK,
        left_out={},
    )
    return write_comparison(comparison, None, folder, None)


def main() -> None:
    """Print a line a part, and the sum."""
    given = [int(argument) for argument in sys.argv[1:]]
    num_classes, images = [*given, *(CLASSES, IMAGES)[len(given) :]]
    print(machine())
    print(f"{num_classes:,} classes, {images:,} images")
    import matplotlib.figure  # noqa: F401 - its import is not what is measured

    with tempfile.TemporaryDirectory(prefix="patchline-") as name:
        folder = Path(name)
        table, logits = made_table(num_classes, images)
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
            report = reported(predictions, num_classes)
        with meter.part("files: page, JSON, Parquet"):
            html = written(report, table, folder)
        for file in sorted(folder.iterdir()):
            print(f"  {file.name:<30}{file.stat().st_size / _MEGABYTE:9.1f} MB")
        with meter.part("comparison of two versions"):
            _compared(table, predictions.probabilities_NK, folder)
        print(
            f"{'together':<28}{meter.total:7.1f} s {meter.busy:7.1f} s of CPU"
            f"{meter.most / _MEGABYTE:9.0f} MB at most"
        )
        print(f"{html.name} has {html.stat().st_size / _MEGABYTE:.1f} MB")


if __name__ == "__main__":
    main()
