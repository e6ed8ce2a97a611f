"""What a model says about the images of a manifest, as a Parquet table.

Columns: row (of the store), path, split, label, label_index, logits (K numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.atomic_files import replacing
from pipeline.section import Section

Array = np.ndarray[Any, Any]


class PredictionJob(Section):
    """What the prediction process is given."""

    model_folder: Path
    manifest_file: Path
    store: Path
    splits: tuple[str, ...]
    device: str
    file: Path
    """Where the table goes."""


class PredictionResult(Section):
    """Where the table is, and how fast it came."""

    file: Path
    images: int
    seconds: float


@dataclass(frozen=True)
class SplitPredictions:
    """The predictions of one split as arrays."""

    rows_N: Array
    paths: list[str]
    labels_N: Array
    logits_NK: Array


def save(table: pd.DataFrame, file: Path) -> None:
    """Write the table whole, or not at all."""
    with replacing(file) as temporary:
        table.to_parquet(temporary, index=False)


def load_split(file: Path, split: str) -> SplitPredictions:
    """Return the predictions of one split, in manifest order."""
    table = pd.read_parquet(file)
    chosen = table[table["split"] == split]
    return SplitPredictions(
        rows_N=chosen["row"].to_numpy(),
        paths=list(chosen["path"]),
        labels_N=chosen["label_index"].to_numpy(),
        logits_NK=np.stack(list(chosen["logits"])),
    )
