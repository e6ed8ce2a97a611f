"""A confusion matrix as its non-zero cells, and its summary: the most confused pairs.

Shapes: N samples, K classes, M cells, of which there are at most N.

`plots.plot_confusion_matrix` draws it as PNG, `parts.html.j2` as a table in the HTML report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConfusionCells:
    """Counts in order of the true class, then of the predicted one."""

    rows_M: Array
    """True class of each cell."""
    columns_M: Array
    """Predicted class of each cell."""
    counts_M: Array
    """Number of images in each cell, at least one."""
    num_classes: int

    @classmethod
    def of_answers(cls, labels_N: Array, predictions_N: Array, num_classes: int) -> Self:
        """Count the true and predicted classes of N samples."""
        codes = labels_N.astype(np.int64) * num_classes + predictions_N
        cells, counts = np.unique(codes, return_counts=True)
        return cls(cells // num_classes, cells % num_classes, counts, num_classes)

    @classmethod
    def of_matrix(cls, confusion: Sequence[Sequence[int]]) -> Self:
        """Take the cells of a whole matrix."""
        counts_KK = np.array(confusion, dtype=np.int64)
        rows, columns = np.nonzero(counts_KK)
        return cls(rows, columns, counts_KK[rows, columns], len(counts_KK))

    @property
    def images(self) -> Array:
        """Images of each class."""
        return self._summed(self.rows_M, self.counts_M)

    @property
    def predicted(self) -> Array:
        """Number of images predicted as each class."""
        return self._summed(self.columns_M, self.counts_M)

    @property
    def hits(self) -> Array:
        """Number of correctly predicted images of each class."""
        right = self.rows_M == self.columns_M
        return self._summed(self.rows_M[right], self.counts_M[right])

    @property
    def errors(self) -> Self:
        """The cells off the diagonal."""
        wrong = self.rows_M != self.columns_M
        rows, columns = self.rows_M[wrong], self.columns_M[wrong]
        return type(self)(rows, columns, self.counts_M[wrong], self.num_classes)

    def part(self, chosen: Array) -> Array:
        """Return the counts among some classes, in their order, as a small matrix."""
        places = np.full(self.num_classes, -1)
        places[chosen] = np.arange(len(chosen))
        rows, columns = places[self.rows_M], places[self.columns_M]
        inside = (rows >= 0) & (columns >= 0)
        counts = np.zeros((len(chosen), len(chosen)), np.int64)
        counts[rows[inside], columns[inside]] = self.counts_M[inside]
        return counts

    def _summed(self, classes_M: Array, counts_M: Array) -> Array:
        sums = np.bincount(classes_M, weights=counts_M, minlength=self.num_classes)
        return sums.astype(np.int64)


MOST_SHOWN_CLASSES = 30
_CLASSES_OF_LARGE_MATRIX = 20
REST = "all others"


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


def find_confused_pairs(
    cells: ConfusionCells, classes: Sequence[str], limit: int = 10
) -> list[ConfusedPair]:
    """Return the most frequent confusions in descending order."""
    totals, errors = cells.images, cells.errors
    most = _most_frequent(errors)[:limit]
    rows, columns = errors.rows_M[most].tolist(), errors.columns_M[most].tolist()
    counts = errors.counts_M[most].tolist()
    return [
        ConfusedPair(classes[row], classes[column], count, int(totals[row]))
        for row, column, count in zip(rows, columns, counts, strict=True)
    ]


def build_shown_matrix(cells: ConfusionCells, classes: Sequence[str]) -> ShownMatrix:
    """Return the whole matrix, or with more than 30 classes the 20 in the most confused pairs."""
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
