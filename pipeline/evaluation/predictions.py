"""A model's predictions for the images of a manifest, as a Parquet table.

Columns: path, sha256, split, label, label_index, predicted, probability (of the predicted class),
probabilities (K numbers, calibrated), group, mode, width, height, bytes. The columns of the
data itself that `evaluation.slices` names follow. The table of a run also has row (of the prepared
store) and logits (K numbers, uncalibrated).

The table of a multi-label model has the same columns without label_index. Its label is the set of
true labels as `label_sets.encode_labels` writes it, predicted those at or above their thresholds,
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
from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    by_task,
    label_pairs,
)
from patchline.pipeline.data.manifests.manifest import own_columns
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.metrics.label_calibration import LabelThresholds, listed
from patchline.pipeline.workspace.files.atomic_files import replace_file

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
    labels: Array
    """Number of each image's class (N); of sets, 1 where an image has a label, else 0 (N, K)."""
    probabilities_NK: Array
    predicted: Array
    """What is predicted, in the same form."""

    @classmethod
    def of(cls, table: pd.DataFrame) -> Self:
        """Extract the arrays from a table with the columns above."""
        labels_N = table["label_index"].to_numpy(np.int64)
        rows = table["probabilities"]
        if len(rows) * (len(rows.iloc[0]) if len(rows) else 0) > _MOST_PRECISE:
            probabilities = np.stack(list(rows))
        else:
            probabilities = stack_rows(rows)
            # float32 in the file: normalise the sums to 1 again
            probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
        answers_N = probabilities.argmax(axis=1) if len(rows) else labels_N
        return cls(table, labels_N, probabilities, answers_N)

    @classmethod
    def of_label_sets(cls, table: pd.DataFrame, classes: Sequence[str]) -> Self:
        """Extract the arrays from a table of sets of labels."""
        labels_NK, predicted_NK = (
            label_matrix(list(table[column]), classes) for column in ("label", "predicted")
        )
        probabilities_NK = stack_rows(table["probabilities"]).reshape(labels_NK.shape)
        return cls(table, labels_NK, probabilities_NK, predicted_NK)

    @property
    def groups(self) -> ImageGroups | None:
        """The groups of the images; None if no two of them are of one group."""
        return image_groups(self.table)

    @property
    def positions(self) -> Array:
        """Row number of each image in its saved table."""
        return self.table.index.to_numpy(np.int64)


def stack_rows(rows: pd.Series[Any]) -> Array:
    """Return a column of N lists of K numbers as float64 (N, K)."""
    if len(rows) == 0:
        return np.zeros((0, 0))
    return np.stack(list(rows)).astype(np.float64)


def class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Array:
    """Return the number of each label among the classes (N).

    Raises:
        DataError: if a label is not a class of the model.
    """
    _check_known(
        labels,
        classes,
        SINGLE_LABEL,
        "Leave out these images, or rename their folders to the model's class names.",
    )
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index[label] for label in labels], np.int64)


def label_matrix(labels: Sequence[str], classes: Sequence[str]) -> Array:
    """Return 1 where an image has a label, else 0 (N, K).

    Raises:
        DataError: if a label is not one of the model.
    """
    _check_known(
        labels,
        classes,
        MULTI_LABEL,
        "Leave these labels out of the data, or rename them to the model's.",
    )
    return label_sets.matrix(labels, classes)


def _check_known(
    labels: Sequence[str], classes: Sequence[str], task: label_sets.Task, remedy: str
) -> None:
    unknown = [each for each in label_pairs(labels, task).names if each not in set(classes)]
    if unknown:
        words = by_task(task)
        raise DataError(
            f"The model has no {words.one} {listed(unknown)}; its {words.several} are "
            f"{listed(classes)}. {remedy}"
        )


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
    probabilities = probabilities_NK.astype(np.float32, copy=False)
    predicted = np.array(classes, dtype=object)[probabilities.argmax(axis=1)]
    numbers = class_numbers(list(rows["label"]), classes)
    return _as_table(rows, probabilities, predicted, label_index=numbers)


def with_label_sets(
    rows: pd.DataFrame,
    classes: Sequence[str],
    probabilities_NK: Array,
    thresholds: LabelThresholds,
) -> pd.DataFrame:
    """Return rows of a manifest as a table of predicted sets of labels, numbered from 0.

    The stored probabilities are float32, and the predicted labels are those that they have.

    Args:
        rows: rows with the manifest's columns; `row`, `logits` and the data's own are kept.
        classes: the model's labels, in the order of its outputs.
        probabilities_NK: calibrated probabilities of the rows.
        thresholds: thresholds that the probabilities of an image's labels reach.
    """
    probabilities = probabilities_NK.astype(np.float32, copy=False)
    predicted = [
        label_sets.encode_labels(classes[k] for k in np.flatnonzero(row).tolist())
        for row in thresholds.predicted(probabilities.astype(np.float64))
    ]
    return _as_table(rows, probabilities, predicted)


def _as_table(
    rows: pd.DataFrame, probabilities_NK: Array, predicted: Sequence[str] | Array, **numbers: Array
) -> pd.DataFrame:
    table = (
        rows[FROM_MANIFEST]
        .reset_index(drop=True)
        .assign(
            predicted=predicted,
            probability=probabilities_NK.max(axis=1, initial=0),
            probabilities=list(probabilities_NK),
            **numbers,
        )
    )
    own = [*own_columns(rows.columns), *(column for column in ("row", "logits") if column in rows)]
    table = table[[column for column in COLUMNS if column in table]]
    return table.assign(**{column: rows[column].to_numpy() for column in own})


def save(table: pd.DataFrame, file: Path) -> None:
    """Write the table atomically."""
    with replace_file(file) as temporary:
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
