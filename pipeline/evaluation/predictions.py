"""A model's predictions for the images of a manifest, as a Parquet table.

Columns: path, sha256, split, label, label_index, predicted, probability (of the predicted class),
probabilities (K numbers, calibrated), group, mode, width, height, bytes. The columns of the
data itself that `evaluation.slices` names follow. The table of a run also has row (of the prepared
store) and logits (K numbers, uncalibrated).

The table of a multi-label model has the same columns without label_index. Its label is the set of
true labels as `label_sets.encoded` writes it, predicted those at or above their thresholds,
likewise, and probability that of the most probable label.

Shapes: N images, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests.manifest import own_columns
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.label_calibration import listed
from patchline.pipeline.evaluation.metrics.label_thresholds import LabelThresholds
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, fit_temperature
from patchline.pipeline.workspace.files.atomic_files import replacing

Array = np.ndarray[Any, Any]

FROM_MANIFEST = ["path", "sha256", "split", "label", "group", "mode", "width", "height", "bytes"]
COLUMNS = [
    "path", "sha256", "split", "label", "label_index", "predicted", "probability",
    "probabilities", "group", "mode", "width", "height", "bytes",
]  # fmt: skip
_MOST_PRECISE = 2**25
"""Up to so many probabilities (256 MiB) are converted to float64; more stay float32."""
_ROWS_OF_MANY, _MANY_NUMBERS = 512, 1000
"""Row group size, used if a row has more probabilities than `_MANY_NUMBERS`."""


@dataclass(frozen=True)
class Predictions:
    """Predictions as a table and as arrays; the table's index is the row number in its file."""

    table: pd.DataFrame
    labels_N: Array
    probabilities_NK: Array

    @classmethod
    def of(cls, table: pd.DataFrame) -> Self:
        """Extract the arrays from a table with the columns above."""
        labels_N = table["label_index"].to_numpy(np.int64)
        rows = table["probabilities"]
        if len(rows) * (len(rows.iloc[0]) if len(rows) else 0) > _MOST_PRECISE:
            return cls(table, labels_N, np.stack(list(rows)))
        probabilities = stacked(rows)
        # float32 in the file: normalise the sums to 1 again
        return cls(table, labels_N, probabilities / probabilities.sum(axis=1, keepdims=True))

    @classmethod
    def load(cls, file: Path, split: str | None = None) -> Self:
        """Read a table, or one split of it, in the file's order."""
        table = pd.read_parquet(file)
        return cls.of(table if split is None else table[table["split"] == split])

    @property
    def paths(self) -> list[str]:
        """Path of each image, relative to the data's folder."""
        return list(self.table["path"])

    @property
    def positions(self) -> Array:
        """Row number of each image in its saved table."""
        return self.table.index.to_numpy(np.int64)

    def of_split(self, split: str) -> Self:
        """Return the predictions of one split, with their row numbers unchanged."""
        chosen = (self.table["split"] == split).to_numpy()
        return type(self)(self.table[chosen], self.labels_N[chosen], self.probabilities_NK[chosen])


def stacked(rows: pd.Series[Any]) -> Array:
    """Return a column of N lists of K numbers as float64 (N, K)."""
    if len(rows) == 0:
        return np.zeros((0, 0))
    return np.stack(list(rows)).astype(np.float64)


def with_probabilities(
    rows: pd.DataFrame, classes: Sequence[str], probabilities_NK: Array
) -> pd.DataFrame:
    """Return rows of a manifest as a table of predictions, numbered from 0.

    Args:
        rows: rows with the manifest's columns; `row`, `logits` and the data's own are kept.
        classes: the model's classes, in the order of its outputs.
        probabilities_NK: calibrated probabilities of the rows.

    Raises:
        DataError: if a label is not a class of the model.
    """
    index = {name: number for number, name in enumerate(classes)}
    labels = rows["label"].map(index)
    unknown = sorted(set(rows.loc[labels.isna(), "label"]))
    if unknown:
        raise DataError(
            f"The model has no class {listed(unknown)}; its classes are {listed(classes)}. Leave "
            "out these images, or rename their folders to the model's class names."
        )
    probabilities = probabilities_NK.astype(np.float32, copy=False)
    answers = probabilities.argmax(axis=1)
    table = rows[FROM_MANIFEST].reset_index(drop=True)
    table["label_index"] = labels.to_numpy(np.int64)
    table["predicted"] = np.array(classes, dtype=object)[answers]
    table["probability"] = probabilities[np.arange(len(answers)), answers]
    table["probabilities"] = list(probabilities)
    own = [*own_columns(rows.columns), *(column for column in ("row", "logits") if column in rows)]
    table = table[COLUMNS]
    return table.assign(**{column: rows[column].to_numpy() for column in own})


def save(table: pd.DataFrame, file: Path) -> None:
    """Write the table atomically."""
    with replacing(file) as temporary:
        numbers = len(table["logits" if "logits" in table else "probabilities"].iloc[0])
        if numbers > _MANY_NUMBERS:
            _write_in_groups(table, temporary)
        else:
            table.to_parquet(temporary, index=False)


def _write_in_groups(table: pd.DataFrame, file: Path) -> None:
    """Write the rows in groups, so that memory never holds a second copy of the table."""
    import pyarrow as pa
    from pyarrow import parquet

    lists = {"logits", "probabilities"} & set(table.columns)
    schema = pa.Table.from_pandas(table[:_ROWS_OF_MANY], preserve_index=False).schema
    words = [name for name in table.columns if name not in lists]  # numbers seldom repeat
    with parquet.ParquetWriter(file, schema, use_dictionary=words) as writer:
        for start in range(0, len(table), _ROWS_OF_MANY):
            rows = table[start : start + _ROWS_OF_MANY]
            writer.write_table(pa.Table.from_pandas(rows, schema=schema, preserve_index=False))


def groups_of(table: pd.DataFrame) -> list[str] | None:
    """Return the group of each image, its own if it has none; None if no image has one."""
    if "group" not in table or not len(table):
        return None
    groups = table["group"].astype(str)
    if not (groups != "").any():
        return None
    own = "image " + table["path"].astype(str)
    return list(groups.where(groups != "", own))


def image_groups(table: pd.DataFrame) -> ImageGroups | None:
    """Return the groups of a table's images; None if no two of them are of one group."""
    return ImageGroups.of(groups_of(table))


def calibrated(
    table: pd.DataFrame,
    classes: tuple[str, ...],
    fit: TemperatureFit | None = None,
    class_images: Sequence[int] = (),
) -> tuple[pd.DataFrame, TemperatureFit]:
    """Fit the calibration on all images but the test split; return the predictions and it.

    Args:
        table: rows of the manifest with `logits`.
        classes: the model's classes, in the order of its outputs.
        fit: the calibration, if it needs no fit.
        class_images: number of training images of each class, if the training balanced them.

    Raises:
        RunError: if the model's outputs are not finite numbers.
    """
    fit = fit or _fitted(table[table["split"] != "test"], classes, class_images)
    probabilities_NK = np.empty((len(table), len(classes)), np.float32)
    for rows in row_slices(probabilities_NK.shape):
        probabilities_NK[rows] = softmax(fit.logits(stacked(table["logits"].iloc[rows])))
    return with_probabilities(table, classes, probabilities_NK), fit


def _fitted(
    table: pd.DataFrame, classes: tuple[str, ...], class_images: Sequence[int]
) -> TemperatureFit:
    index = {name: number for number, name in enumerate(classes)}
    labels_N = table["label"].map(index).to_numpy(np.int64)
    chosen = list(table["logits"])
    logits_NK = np.stack(chosen) if chosen else np.empty((0, len(classes)), np.float32)
    groups = image_groups(table)
    return fit_temperature(logits_NK, labels_N, groups=groups, class_images=class_images)


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
