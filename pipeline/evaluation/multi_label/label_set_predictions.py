"""A multi-label model's predictions for the images of a manifest, as a Parquet table.

Columns: path, sha256, split, label (the true labels as `label_sets.encoded` writes them), predicted
(those at or above their thresholds, likewise), probability (of the most probable label),
probabilities (K numbers, calibrated), group, mode, width, height, bytes. Columns of the data itself
follow. The table of a run also has row (of the prepared store) and logits (K numbers).

Shapes: N images, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests.own_columns import own_columns
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics.label_calibration import listed
from patchline.pipeline.evaluation.metrics.label_thresholds import LabelThresholds
from patchline.pipeline.evaluation.predictions import FROM_MANIFEST, stacked

Array = np.ndarray[Any, Any]
LABEL_SET_COLUMNS = [
    "path", "sha256", "split", "label", "predicted", "probability", "probabilities", "group",
    "mode", "width", "height", "bytes",
]  # fmt: skip


@dataclass(frozen=True)
class LabelSetPredictions:
    """Predictions as a table and as arrays; the table's index is the row number in its file."""

    table: pd.DataFrame
    labels_NK: Array
    """1 where an image has a label, else 0."""
    probabilities_NK: Array
    predicted_NK: Array
    """1 where a label is predicted, else 0."""

    @classmethod
    def of(cls, table: pd.DataFrame, classes: Sequence[str]) -> Self:
        """Extract the arrays from a table with the columns above."""
        probabilities = stacked(table["probabilities"])
        return cls(
            table,
            label_sets.matrix(list(table["label"]), classes),
            probabilities if len(table) else np.zeros((0, len(classes))),
            label_sets.matrix(list(table["predicted"]), classes),
        )

    @property
    def positions(self) -> Array:
        """Row number of each image in its saved table."""
        return self.table.index.to_numpy(np.int64)


def checked_labels(rows: pd.DataFrame, classes: Sequence[str]) -> None:
    """Check that a model has all labels of some rows of a manifest.

    Raises:
        DataError: if it lacks some.
    """
    there = label_sets.counts_of(rows["label"])
    unknown = sorted(set(there) - set(classes))
    if unknown:
        raise DataError(
            f"The model has no label {listed(unknown)}; its labels are {listed(classes)}. Leave "
            "these labels out of the data, or rename them to the model's."
        )


def with_label_sets(
    rows: pd.DataFrame,
    classes: Sequence[str],
    probabilities_NK: Array,
    thresholds: LabelThresholds,
) -> pd.DataFrame:
    """Return rows of a manifest as a table of predictions, numbered from 0.

    The stored probabilities are float32, and the predicted labels are those that they have.

    Args:
        rows: rows with the manifest's columns; `row`, `logits` and the data's own are kept.
        classes: the model's labels, in the order of its outputs.
        probabilities_NK: calibrated probabilities of the rows.
        thresholds: from which probabilities on an image has a label.

    Raises:
        DataError: if a label is not one of the model.
    """
    checked_labels(rows, classes)
    probabilities = probabilities_NK.astype(np.float32, copy=False)
    predicted_NK = thresholds.predicted(probabilities.astype(np.float64))
    table = rows[FROM_MANIFEST].reset_index(drop=True)
    table["predicted"] = [
        label_sets.encoded(classes[k] for k in np.flatnonzero(row).tolist()) for row in predicted_NK
    ]
    table["probability"] = probabilities.max(axis=1) if len(rows) else np.zeros(0, np.float32)
    table["probabilities"] = list(probabilities)
    own = [*own_columns(rows.columns), *(column for column in ("row", "logits") if column in rows)]
    table = table[LABEL_SET_COLUMNS]
    return table.assign(**{column: rows[column].to_numpy() for column in own})
