"""Which classes are taken for which: pairs, and the part of a large matrix worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_SHOWN_CLASSES = 30
_CLASSES_OF_LARGE_MATRIX = 20
REST = "all others"

Confusion = Sequence[Sequence[int]]
"""Counts (K, K): rows are true classes, columns predicted ones."""


class ConfusedPair(NamedTuple):
    """Images of one class that were taken for another."""

    label: str
    predicted: str
    images: int
    of: int
    """Images of the true class."""


class ShownMatrix(NamedTuple):
    """The rows and columns of a confusion matrix that fit on a page."""

    rows: list[str]
    columns: list[str]
    """The same, and in a part of a matrix one more: everything else."""
    counts: list[list[int]]
    shares: list[list[float]]
    """Of the true class; 0 where it has no image."""
    is_part: bool


def confused_pairs(
    confusion: Confusion, classes: Sequence[str], limit: int = 10
) -> list[ConfusedPair]:
    """Return the most frequent confusions, most images first."""
    counts = np.array(confusion)
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    rows, columns = np.nonzero(counts)
    order = np.argsort(-counts[rows, columns], kind="stable")[:limit]
    return [
        ConfusedPair(classes[row], classes[column], int(counts[row, column]), int(totals[row]))
        for row, column in zip(rows[order], columns[order], strict=True)
    ]


def shown_matrix(confusion: Confusion, classes: Sequence[str]) -> ShownMatrix:
    """Return the whole matrix, or of more than 30 classes 20 of the most confused pairs."""
    counts = np.array(confusion)
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    is_part = len(classes) > MOST_SHOWN_CLASSES
    rows = columns = list(classes)
    if is_part:
        chosen = _in_the_most_frequent_pairs(counts)
        inner = counts[np.ix_(chosen, chosen)]
        rest = counts[chosen].sum(axis=1) - inner.sum(axis=1)
        counts, totals = np.column_stack([inner, rest]), totals[chosen]
        rows = [classes[k] for k in chosen]
        columns = [*rows, REST]
    return ShownMatrix(rows, columns, counts.tolist(), (counts / totals).tolist(), is_part)


def _in_the_most_frequent_pairs(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the classes of the most frequent confusions, in order, until there are enough."""
    errors = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(errors)
    order = np.argsort(-errors[rows, columns], kind="stable")
    named = np.column_stack([rows[order], columns[order]]).ravel()
    every = np.concatenate([named, np.arange(len(counts))])  # with few confusions, others too
    return np.sort(list(dict.fromkeys(every.tolist()))[:_CLASSES_OF_LARGE_MATRIX])
