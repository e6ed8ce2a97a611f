"""Predictions with known answers, saved the way a run saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject, evaluate
from patchline.pipeline.evaluation.tasks import SINGLE
from tests.conftest import Run


def predicted_rows(
    classes: tuple[str, ...],
    *,
    accuracy: float = 0.7,
    per_class: int = 6,
    paths: str = "{label}/{row}.png",
) -> pd.DataFrame:
    """Return rows of a manifest with logits that are right in about that share of the images."""
    generator, count = np.random.default_rng(0), len(classes)
    labels = np.tile(np.repeat(np.arange(count), per_class), 2)
    rows = np.arange(len(labels))
    logits = generator.normal(0, 0.5, (len(labels), count)).astype(np.float32)
    logits[rows, labels - (generator.random(len(labels)) >= accuracy)] += 4
    table = pd.DataFrame({"row": rows, "label": [classes[label] for label in labels]})
    return table.assign(
        path=[paths.format(label=label, row=row) for row, label in enumerate(table["label"])],
        sha256=[f"{row:064x}" for row in rows],
        split=np.repeat(["validation", "test"], len(rows) // 2),
        group=[f"camera {row % 3}" for row in rows],
        mode="RGB",
        width=30 + rows,
        height=40,
        bytes=500 * (rows + 1),
        logits=list(logits),
    )


def report_of(classes: tuple[str, ...], **settings: Any) -> EvaluationReport:
    """Return the report of such predictions, and save them as `predictions.parquet`."""
    table, fit = SINGLE.calibrated(predicted_rows(classes, **settings), classes)
    file = Path("predictions.parquet")
    predictions.save(table, file)
    return evaluate(
        Predictions.of(pd.read_parquet(file).query("split == 'test'")),
        ReportSubject(name="photos", classes=classes, split="test", data_fingerprint="0123abcd"),
        calibration=fit,
    )


def made_of(
    probabilities_NK: np.ndarray[Any, Any], labels: list[int], **columns: Any
) -> Predictions:
    """Return predictions with the given probabilities, and columns of the manifest."""
    classes = [f"class {k}" for k in range(probabilities_NK.shape[1])]
    count = len(labels)
    rows = {
        "path": [f"{k}.png" for k in range(count)],
        "sha256": "0" * 64,
        "split": "test",
        "label": [classes[label] for label in labels],
        "group": "",
        "mode": "RGB",
        "width": 32,
        "height": 32,
        "bytes": 1000,
    }
    table = pd.DataFrame({**rows, **columns}, index=range(count))
    return Predictions.of(predictions.with_probabilities(table, classes, probabilities_NK))


def random_predictions(
    count: int,
    num_classes: int,
    *,
    seed: int = 0,
    skill: float = 2.0,
    hard: bool = False,
    **columns: Any,
) -> Predictions:
    """Return predictions with some skill; if `hard`, class 0 is nearly guessed."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, count)
    logits = generator.normal(size=(count, num_classes))
    logits[np.arange(count), labels] += np.where((labels == 0) & hard, 0, skill)
    odds = np.exp(logits)
    return made_of(odds / odds.sum(axis=1, keepdims=True), labels.tolist(), **columns)


def random_images(count: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the images of a prepared store of that many rows."""
    return np.random.default_rng(0).integers(0, 256, (count, 12, 12, channels), dtype=np.uint8)


def places(finished: Run) -> tuple[Path, Path, Path]:
    """Return the best model, the manifest and the prepared images of a run."""
    work = finished.folder / ".patchline"
    [best], [manifest] = work.glob("runs/*/training/best"), work.glob("manifests/*.parquet")
    [store] = [each for each in work.glob("prepared/*") if not each.name.startswith(".")]
    return best, manifest, store
