"""Figures that average over the classes of a confusion matrix, with their intervals.

Their variance comes from the delta method: each image moves a figure by its influence. Where a
class has few images, or no errors, the plain counts say that nothing varies; so each class's counts
are drawn towards a prior of `_PRIOR_IMAGES` images first. The interval follows from value and
variance by an effective number of images (`with_effective_size`).

Shapes: K classes; counts (K, K) have true classes as rows and predicted ones as columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pipeline.metrics.intervals import MetricEstimate, with_effective_size

Array = np.ndarray[Any, Any]
_PRIOR_IMAGES = 3.0
_NOTHING, _HARDLY_ANY = 1e-12, 1e-9


class _Figure(NamedTuple):
    value: float
    influence_KK: Array
    """How much the figure moves by mass added to a cell, by the share of that mass."""


def average_estimates(confusion_KK: Array) -> dict[str, MetricEstimate]:
    """Return balanced accuracy, macro and weighted figures and MCC.

    Means are over the classes with images. A class that was never predicted has precision 0 in the
    value; the interval is made around what it would have with the prior alone.
    """
    counts = confusion_KK.astype(np.float64)
    images, predicted = counts.sum(axis=1), counts.sum(axis=0)
    present = images > 0
    hit_share = (0.5 + np.trace(counts) / counts.sum()) / 2
    by_row = _with_prior(counts, present, hit_share)
    by_column = _with_prior(counts.T, present, hit_share).T
    smooth = {
        **_macro_figures(by_row, present),
        "mcc": _mcc(by_row),
        "macro_precision": _precision(by_column, _even(present)),
        "weighted_precision": _weighted_precision(by_column),
    }
    values = {
        **_macro_figures(counts, present),
        "mcc": _mcc(counts),
        "macro_precision": _precision(counts, _even(present)),
        "weighted_precision": _weighted_precision(counts),
    }
    unseen = present & (predicted == 0)
    missing = {
        "macro_precision": _even(present)[unseen].sum(),
        "weighted_precision": images[unseen].sum() / images.sum(),
    }
    estimates = {
        key: _estimate(
            value=figure.value,
            centre=figure.value + hit_share * float(missing.get(key, 0.0)),
            smooth=smooth[key],
            counts=by_column if key in missing else by_row,
            n=int(confusion_KK.sum()),
            ends=(-1.0, 1.0) if key == "mcc" else (0.0, 1.0),
        )
        for key, figure in values.items()
    }
    return {**estimates, "macro_recall": estimates["balanced_accuracy"]}


def _estimate(
    *,
    value: float,
    centre: float,
    smooth: _Figure,
    counts: Array,
    n: int,
    ends: tuple[float, float],
) -> MetricEstimate:
    variance = float((counts * smooth.influence_KK**2).sum()) / counts.sum() ** 2
    spread = (smooth.value - ends[0]) * (ends[1] - smooth.value)
    effective_n = spread / variance if variance > _NOTHING else 0.0
    return with_effective_size(value, n=n, effective_n=effective_n, centre=centre, ends=ends)


def _with_prior(counts: Array, present: Array, hit_share: float) -> Array:
    """Return the counts with each row drawn towards the prior, and its sum kept.

    The prior has `hit_share` on the diagonal and shares the rest as often as the classes occur. A
    row of a class that is present but has nothing becomes one image of the prior.
    """
    sums = counts.sum(axis=1)
    others = (sums + counts.sum(axis=0) + _HARDLY_ANY) * (1 - np.eye(len(counts)))
    others /= np.maximum(others.sum(axis=1, keepdims=True), _NOTHING)
    prior = hit_share * np.eye(len(counts)) + (1 - hit_share) * others
    kept = np.where(present & (sums == 0), 1.0, sums)
    drawn: Array = (kept / (sums + _PRIOR_IMAGES))[:, None] * (counts + _PRIOR_IMAGES * prior)
    return drawn


def _even(present: Array) -> Array:
    weights: Array = present / present.sum()
    return weights


def _macro_figures(counts: Array, present: Array) -> dict[str, _Figure]:
    images = counts.sum(axis=1)
    share = images / images.sum()
    f1 = 2 * np.diag(counts) / _positive(images + counts.sum(axis=0))
    weighted = _f1(counts, share)
    moved = weighted.influence_KK + (f1 - f1 @ share)[:, None]  # an image adds to a weight too
    return {
        "balanced_accuracy": _recall(counts, _even(present)),
        "macro_f1": _f1(counts, _even(present)),
        "weighted_f1": _Figure(weighted.value, moved),
    }


def _recall(counts: Array, weights: Array) -> _Figure:
    images = counts.sum(axis=1)
    recall = np.diag(counts) / _positive(images)
    pull = weights * counts.sum() / _positive(images)
    return _Figure(float(recall @ weights), (np.eye(len(counts)) - recall[:, None]) * pull[:, None])


def _precision(counts: Array, weights: Array) -> _Figure:
    turned = _recall(counts.T, weights)
    return _Figure(turned.value, turned.influence_KK.T)


def _weighted_precision(counts: Array) -> _Figure:
    share = counts.sum(axis=1) / counts.sum()
    precision = np.diag(counts) / _positive(counts.sum(axis=0))
    figure = _precision(counts, share)
    moved = figure.influence_KK + (precision - figure.value)[:, None]
    return _Figure(figure.value, moved)


def _f1(counts: Array, weights: Array) -> _Figure:
    """Return the weighted mean of the classes' F1 (Takahashi et al. 2022, Applied Intelligence)."""
    both = _positive(counts.sum(axis=1) + counts.sum(axis=0))
    f1 = 2 * np.diag(counts) / both
    gain = weights * counts.sum() / both
    loss = gain * f1
    return _Figure(float(f1 @ weights), np.diag(2 * gain) - loss[:, None] - loss[None, :])


def _mcc(counts: Array) -> _Figure:
    """Return the correlation of K classes (Gorodkin 2004, Computational Biology and Chemistry 28).

    It is 0, and its interval everything, where one class holds all labels or all predictions.
    """
    shares = counts / counts.sum()
    true, called = shares.sum(axis=1), shares.sum(axis=0)
    of_true, of_called = 1 - true @ true, 1 - called @ called
    if min(of_true, of_called) < _NOTHING:
        return _Figure(0.0, np.zeros_like(shares))
    root = np.sqrt(of_true * of_called)
    value = (np.trace(shares) - true @ called) / root
    moved = (np.eye(len(shares)) - called[:, None] - true[None, :]) / root
    moved += value * (true[:, None] / of_true + called[None, :] / of_called)
    return _Figure(float(value), moved - (shares * moved).sum())


def _positive(counts: Array) -> Array:
    return np.maximum(counts, _NOTHING)
