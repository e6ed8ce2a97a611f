"""Predictions with known answers, saved the way the prediction process saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.evaluation import predictions
from pipeline.evaluation.report import EvaluationReport, evaluate


def save_predictions(
    file: Path,
    classes: tuple[str, ...],
    *,
    accuracy: float = 0.7,
    per_class: int = 6,
    paths: str = "{label}/{row}.png",
) -> Path:
    """Write validation and test predictions that are right in about that share of the images."""
    generator = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for split in ("validation", "test"):
        for index, label in enumerate(classes):
            for _ in range(per_class):
                said = index if generator.random() < accuracy else index - 1
                logits = generator.normal(0, 0.5, len(classes))
                logits[said] += 4
                path = paths.format(label=label, row=len(rows))
                rows.append(
                    {
                        "row": len(rows),
                        "path": path,
                        "split": split,
                        "label": label,
                        "label_index": index,
                        "logits": logits.astype(np.float32),
                    }
                )
    predictions.save(pd.DataFrame(rows), file)
    return file


def report_of(folder: Path, classes: tuple[str, ...], **settings: Any) -> EvaluationReport:
    """Return the report of such predictions."""
    file = save_predictions(folder / "predictions.parquet", classes, **settings)
    return evaluate(file, name="photos", classes=classes, data_fingerprint="0123abcd")


def random_images(count: int, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the images of a prepared store of that many rows."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, 12, 12, channels), dtype=np.uint8)
