"""Metrics averaged over the classes of a confusion matrix, with their intervals.

Their variance comes from the delta method: the influence of each image on the metric. If a class
has few images, or no errors, the plain counts would imply no variance; so each class's counts are
first shrunk towards a prior of `_PRIOR_IMAGES` images. The interval follows from value and variance
through an effective sample size (`with_effective_size`).

Shapes: K classes, M non-zero cells off the diagonal. Rows are true classes, columns predicted ones.
The prior fills every cell, but is stored as the product of a row vector and a column vector; an
influence is a row term plus a column term, plus a diagonal term. So no array has K x K elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.confusion_matrix import ConfusionCells
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    with_effective_size,
)

Array = np.ndarray[Any, Any]
_PRIOR_IMAGES = 3.0
_NOTHING, _HARDLY_ANY = 1e-12, 1e-9


class _CellCounts(NamedTuple):
    """Off the diagonal: single cells, and `left` of the row times `right` of the column."""

    diagonal_K: Array
    rows_M: Array
    columns_M: Array
    values_M: Array
    left_K: Array
    right_K: Array

    @property
    def turned(self) -> _CellCounts:
        """The same with predicted classes as rows."""
        return _CellCounts(
            self.diagonal_K, self.columns_M, self.rows_M, self.values_M, self.right_K, self.left_K
        )

    @property
    def missed(self) -> Array:
        """Sums of the rows without the diagonal."""
        single = np.bincount(self.rows_M, self.values_M, minlength=len(self.diagonal_K))
        missed: Array = single + self.left_K * (self.right_K.sum() - self.right_K)
        return missed

    @property
    def images(self) -> Array:
        """Sums of the rows."""
        images: Array = self.diagonal_K + self.missed
        return images

    @property
    def predicted(self) -> Array:
        """Sums of the columns."""
        return self.turned.images

    def between(self, of_row_K: Array, of_column_K: Array) -> float:
        """Return the sum over all cells off the diagonal, times a number of row and of column."""
        single = self.values_M @ (of_row_K[self.rows_M] * of_column_K[self.columns_M])
        every = (of_row_K @ self.left_K) * (of_column_K @ self.right_K)
        own = (of_row_K * self.left_K) @ (of_column_K * self.right_K)
        return float(single + every - own)


class GroupedAnswers(NamedTuple):
    """The classes of N images that form groups."""

    labels_N: Array
    predictions_N: Array
    groups: ImageGroups


class _Metric(NamedTuple):
    """A metric's value, and its influence function: terms by row, column and on the diagonal."""

    value: float
    of_row_K: Array
    of_column_K: Array
    on_diagonal_K: Array

    def squares(self, counts: _CellCounts) -> float:
        """Return the sum of the counts times the squared influence."""
        row, column = self.of_row_K, self.of_column_K
        diagonal = counts.diagonal_K @ (row + column + self.on_diagonal_K) ** 2
        missed, wrongly = counts.missed, counts.turned.missed
        return float(
            diagonal + missed @ row**2 + wrongly @ column**2 + 2 * counts.between(row, column)
        )

    def influences(self, answered: GroupedAnswers) -> Array:
        """Return how much each image moves the metric (N), up to a factor."""
        labels_N, predictions_N = answered.labels_N, answered.predictions_N
        moved = self.of_row_K[labels_N] + self.of_column_K[predictions_N]
        on_diagonal = np.where(labels_N == predictions_N, self.on_diagonal_K[labels_N], 0.0)
        influences: Array = moved + on_diagonal
        return influences


def average_estimates(
    confusion: ConfusionCells, answered: GroupedAnswers | None = None
) -> dict[str, MetricEstimate]:
    """Return balanced accuracy, macro and weighted averages, and MCC.

    Means are over the classes with images. A class that was never predicted has precision 0 in the
    value; the interval is centred on its precision under the prior alone.

    Args:
        confusion: counts of the images.
        answered: the images, if they form groups.
    """
    counts = _plain(confusion)
    images, predicted = counts.images, counts.predicted
    total = images.sum()
    present = images > 0
    hit_share = (0.5 + counts.diagonal_K.sum() / total) / 2
    by_row = _with_prior(counts, present, hit_share)
    by_column = _with_prior(counts.turned, present, hit_share).turned
    smooth = {
        **_macro_metrics(by_row, present),
        "mcc": _mcc(by_row),
        "macro_precision": _precision(by_column, _even(present)),
        "weighted_precision": _compute_weighted_precision(by_column),
    }
    values = {
        **_macro_metrics(counts, present),
        "mcc": _mcc(counts),
        "macro_precision": _precision(counts, _even(present)),
        "weighted_precision": _compute_weighted_precision(counts),
    }
    unseen = present & (predicted == 0)
    missing = {
        "macro_precision": _even(present)[unseen].sum(),
        "weighted_precision": images[unseen].sum() / total,
    }
    estimates = {}
    for key, metric in values.items():
        near, counts_near = smooth[key], by_column if key in missing else by_row
        variance = near.squares(counts_near) / counts_near.images.sum() ** 2
        if answered is not None:
            variance *= answered.groups.inflation(near.influences(answered))
        ends = (-1.0, 1.0) if key == "mcc" else (0.0, 1.0)
        spread = (near.value - ends[0]) * (ends[1] - near.value)
        estimates[key] = with_effective_size(
            metric.value,
            n=int(total),
            effective_n=spread / variance if variance > _NOTHING else 0.0,
            centre=metric.value + hit_share * float(missing.get(key, 0.0)),
            ends=ends,
        )
    return {**estimates, "macro_recall": estimates["balanced_accuracy"]}


def _plain(confusion: ConfusionCells) -> _CellCounts:
    errors = confusion.errors
    nothing = np.zeros(confusion.num_classes)
    return _CellCounts(
        confusion.hits.astype(np.float64),
        errors.rows_M,
        errors.columns_M,
        errors.counts_M.astype(np.float64),
        nothing,
        nothing,
    )


def _with_prior(counts: _CellCounts, present: Array, hit_share: float) -> _CellCounts:
    """Return the counts with each row shrunk towards the prior, its sum unchanged.

    The prior puts `hit_share` on the diagonal and distributes the rest by class frequency. An empty
    row of a class that is present becomes one image of the prior.
    """
    sums = counts.images
    occurrences = sums + counts.predicted + _HARDLY_ANY
    kept = np.where(present & (sums == 0), 1.0, sums)
    scale = kept / (sums + _PRIOR_IMAGES)
    prior = scale * _PRIOR_IMAGES
    commonest = int(occurrences.argmax())  # nearly all may be its own, so its row is written out
    others = np.flatnonzero(np.arange(len(sums)) != commonest)
    rest = occurrences.sum() - occurrences
    rest[commonest] = occurrences[others].sum()
    left = prior * (1 - hit_share) / np.maximum(rest, _NOTHING)
    written_out = left[commonest] * occurrences[others]
    left[commonest] = 0.0
    return _CellCounts(
        diagonal_K=scale * counts.diagonal_K + prior * hit_share,
        rows_M=np.append(counts.rows_M, np.full(len(others), commonest)),
        columns_M=np.append(counts.columns_M, others),
        values_M=np.append(scale[counts.rows_M] * counts.values_M, written_out),
        left_K=left,
        right_K=occurrences,
    )


def _even(present: Array) -> Array:
    weights: Array = present / present.sum()
    return weights


def _macro_metrics(counts: _CellCounts, present: Array) -> dict[str, _Metric]:
    images = counts.images
    share = images / images.sum()
    f1 = 2 * counts.diagonal_K / _positive(images + counts.predicted)
    weighted = _f1(counts, share)
    moved = weighted.of_row_K + f1 - f1 @ share  # an image adds to a weight too
    return {
        "balanced_accuracy": _recall(counts, _even(present)),
        "macro_f1": _f1(counts, _even(present)),
        "weighted_f1": weighted._replace(of_row_K=moved),
    }


def _recall(counts: _CellCounts, weights: Array) -> _Metric:
    images = counts.images
    recall = counts.diagonal_K / _positive(images)
    pull = weights * images.sum() / _positive(images)
    return _Metric(float(recall @ weights), -recall * pull, np.zeros_like(pull), pull)


def _precision(counts: _CellCounts, weights: Array) -> _Metric:
    turned = _recall(counts.turned, weights)
    return turned._replace(of_row_K=turned.of_column_K, of_column_K=turned.of_row_K)


def _compute_weighted_precision(counts: _CellCounts) -> _Metric:
    images = counts.images
    precision = counts.diagonal_K / _positive(counts.predicted)
    metric = _precision(counts, images / images.sum())
    return metric._replace(of_row_K=metric.of_row_K + precision - metric.value)


def _f1(counts: _CellCounts, weights: Array) -> _Metric:
    """Return the weighted mean of the classes' F1 (Takahashi et al. 2022, Applied Intelligence)."""
    images = counts.images
    both = _positive(images + counts.predicted)
    f1 = 2 * counts.diagonal_K / both
    gain = weights * images.sum() / both
    loss = gain * f1
    return _Metric(float(f1 @ weights), -loss, -loss, 2 * gain)


def _mcc(counts: _CellCounts) -> _Metric:
    """Return the correlation of K classes (Gorodkin 2004, Computational Biology and Chemistry 28).

    It is 0, with the widest interval, if all labels or all predictions are one class.
    """
    images = counts.images
    total = images.sum()
    true, called, hits = images / total, counts.predicted / total, counts.diagonal_K / total
    of_true, of_called = 1 - true @ true, 1 - called @ called
    if min(of_true, of_called) < _NOTHING:
        nothing = np.zeros_like(true)
        return _Metric(0.0, nothing, nothing, nothing)
    root = np.sqrt(of_true * of_called)
    value = float((hits.sum() - true @ called) / root)
    row = value * true / of_true - called / root
    column = value * called / of_called - true / root
    diagonal = np.full_like(true, 1 / root)
    mean = hits @ diagonal + true @ row + called @ column
    return _Metric(value, row - mean, column, diagonal)


def _positive(counts: Array) -> Array:
    return np.maximum(counts, _NOTHING)
