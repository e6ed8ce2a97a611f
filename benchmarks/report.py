"""How long the report of 10,000 images in 10 classes takes beyond prediction, and how large it is.

python -m benchmarks.report
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.evaluation.calibrated_predictions import calibrated
from pipeline.evaluation.evaluating import write_report
from pipeline.evaluation.html_report import ReportPage
from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.report import evaluate

IMAGES, CLASSES, SIDES = 10_000, 10, (32, 224)
_STORED = 500


def main() -> None:
    """Print a line for small images, and one for large ones."""
    quiet_libraries.apply()
    print(machine())
    for side in SIDES:
        rows, classes = _rows(np.random.default_rng(0))
        images = _photos(np.random.default_rng(1), side)
        with tempfile.TemporaryDirectory() as folder:
            seconds, page = _report(rows, classes, images, Path(folder))
            megabytes = page.stat().st_size / 1e6
        print(
            f"report of {IMAGES} images of {side}x{side} in {CLASSES} classes: {seconds:.1f} s, "
            f"HTML {megabytes:.2f} MB"
        )


def _report(
    rows: pd.DataFrame, classes: tuple[str, ...], images: np.ndarray[Any, Any], folder: Path
) -> tuple[float, Path]:
    began = time.perf_counter()
    table, fit = calibrated(rows, classes)
    predictions = Predictions.of(table)
    report = evaluate(
        predictions.of_split("test"),
        name="benchmark",
        classes=classes,
        split="test",
        data_fingerprint="",
        calibration=fit,
    )
    page = ReportPage(title="benchmark: test report", facts={}, notes=(), settings={})
    html = write_report(report, page, table, lambda position: images[position % _STORED], folder)
    return time.perf_counter() - began, html


def _rows(generator: np.random.Generator) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return 10,000 test and 5,000 validation rows, about nine in ten right."""
    count = IMAGES + IMAGES // 2
    classes = tuple(f"class {k}" for k in range(CLASSES))
    labels = generator.integers(0, CLASSES, count)
    logits = generator.normal(size=(count, CLASSES)).astype(np.float32)
    logits[np.arange(count), labels] += 3.5
    sides = generator.integers(30, 2000, (count, 2))
    rows = pd.DataFrame(
        {
            "path": [f"{classes[label]}/{k:05d}.png" for k, label in enumerate(labels)],
            "sha256": [f"{k:064x}" for k in range(count)],
            "split": np.where(np.arange(count) < IMAGES, "test", "validation"),
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

    coarse = generator.integers(0, 256, (_STORED, 6, 6, 3)).astype(np.uint8)
    smooth = np.stack([cv2.resize(image, (side, side)) for image in coarse])
    noise = generator.integers(-12, 13, (1, side, side, 3))
    photos: np.ndarray[Any, np.dtype[np.uint8]]
    photos = np.clip(smooth.astype(np.int16) + noise, 0, 255).astype(np.uint8)
    return photos


if __name__ == "__main__":
    main()
