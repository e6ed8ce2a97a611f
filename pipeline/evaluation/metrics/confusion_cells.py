"""A confusion matrix as its non-zero cells, so that K classes need no K x K array.

Shapes: N samples, K classes, M cells, of which there are at most N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConfusionCells:
    """Counts in order of the true class, then of the predicted one."""

    rows_M: Array
    """True classes."""
    columns_M: Array
    """Predicted classes."""
    counts_M: Array
    """Images, at least one."""
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
