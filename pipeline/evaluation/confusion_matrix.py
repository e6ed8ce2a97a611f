"""Summarise a confusion matrix: the most confused pairs, and the rows and columns to show.

`plots.plot_confusion_matrix` draws it as PNG, `parts.html.j2` as a table in the HTML report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.confusion_cells import ConfusionCells

Array = np.ndarray[Any, Any]
MOST_SHOWN_CLASSES = 30
_CLASSES_OF_LARGE_MATRIX = 20
REST = "all others"

Confusion = Sequence[Sequence[int]]
"""Counts (K, K): rows are true classes, columns predicted ones."""


class ConfusedPair(NamedTuple):
    """Images of one class that were predicted as another."""

    label: str
    predicted: str
    images: int
    of: int
    """Number of images of the true class."""


class ShownMatrix(NamedTuple):
    """The rows and columns of a confusion matrix that fit on a page."""

    rows: list[str]
    columns: list[str]
    """The rows; in a part of a matrix also one column for all other classes."""
    counts: list[list[int]]
    shares: list[list[float]]
    """Shares of the true class; 0 if it has no image."""
    is_part: bool


def cells_of(confusion: Confusion | ConfusionCells) -> ConfusionCells:
    """Return the cells of a matrix; cells are returned unchanged."""
    if isinstance(confusion, ConfusionCells):
        return confusion
    return ConfusionCells.of_matrix(confusion)


def confused_pairs(
    confusion: Confusion | ConfusionCells, classes: Sequence[str], limit: int = 10
) -> list[ConfusedPair]:
    """Return the most frequent confusions in descending order."""
    cells = cells_of(confusion)
    totals, errors = cells.images, cells.errors
    most = _most_frequent(errors)[:limit]
    rows, columns = errors.rows_M[most].tolist(), errors.columns_M[most].tolist()
    counts = errors.counts_M[most].tolist()
    return [
        ConfusedPair(classes[row], classes[column], count, int(totals[row]))
        for row, column, count in zip(rows, columns, counts, strict=True)
    ]


def shown_matrix(confusion: Confusion | ConfusionCells, classes: Sequence[str]) -> ShownMatrix:
    """Return the whole matrix, or with more than 30 classes the 20 in the most confused pairs."""
    cells = cells_of(confusion)
    is_part = len(classes) > MOST_SHOWN_CLASSES
    chosen = _in_the_most_frequent_pairs(cells) if is_part else np.arange(len(classes))
    images = cells.images[chosen]
    counts, rows = cells.part(chosen), [classes[k] for k in chosen.tolist()]
    columns = rows
    if is_part:
        counts = np.column_stack([counts, images - counts.sum(axis=1)])
        columns = [*rows, REST]
    shares = counts / np.maximum(images[:, None], 1)
    return ShownMatrix(rows, columns, counts.tolist(), shares.tolist(), is_part)


def _most_frequent(errors: ConfusionCells) -> Array:
    """Return the indices of the cells, most images first."""
    order: Array = np.argsort(-errors.counts_M, kind="stable")
    return order


def _in_the_most_frequent_pairs(cells: ConfusionCells) -> Array:
    """Return the classes of the most frequent confusions, up to the number shown."""
    errors = cells.errors
    order = _most_frequent(errors)
    named = np.column_stack([errors.rows_M[order], errors.columns_M[order]]).ravel()
    every = np.concatenate(
        [named, np.arange(cells.num_classes)]
    )  # fill up if there are few confusions
    return np.sort(list(dict.fromkeys(every.tolist()))[:_CLASSES_OF_LARGE_MATRIX])
