"""Log loss with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import (
    TAIL,
    ImageGroups,
    MetricEstimate,
    inflation,
)
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices

Array = np.ndarray[Any, Any]
_LEAST_PROBABILITY = 1e-15
_PRIOR_IMAGES = 2.0
_WEIGHT_OF_THE_UNSEEN = 0.6
_SURPRISES = 0.02
"""Images, of all, whose label may be anything, however sure the model is."""


def log_losses(probabilities_NK: Array, labels_N: Array) -> Array:
    """Return the negative log-probability of the true class, by sample (N)."""
    true = probabilities_NK[np.arange(len(labels_N)), labels_N]
    return -np.log(np.maximum(true.astype(np.float64), _LEAST_PROBABILITY))


def log_loss(
    probabilities_NK: Array, labels_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate:
    """Return the mean log loss with a gamma interval.

    A good model's losses are nearly all small, and a sample may lack the rare large one that makes
    the mean. So the sample's variance is joined by the one that the probabilities themselves imply,
    with the weight of `_PRIOR_IMAGES` images, and the upper end allows for part of one more error
    of the size that they imply. The interval is the gamma interval for weighted sums of rare events
    (Fay and Feuer 1997, Statistics in Medicine 16), with part of their allowance.

    Args:
        probabilities_NK: probabilities of the classes; rows sum to 1.
        labels_N: the true classes.
        groups: the groups that the images form; None if the images are independent.
    """
    losses_N = log_losses(probabilities_NK, labels_N)
    losses = np.sort(losses_N)
    n, value = len(losses), float(losses.mean())
    units = n / loss_inflation(losses_N, groups)
    expected, squared = _compute_implied_moments(probabilities_NK, _SURPRISES / (n + 1))
    implied = max(squared - expected**2, 0.0)
    observed = float(losses.var(ddof=1)) if n > 1 else implied
    variance = (observed * n + implied * _PRIOR_IMAGES) / (n + _PRIOR_IMAGES) / units
    unseen = _WEIGHT_OF_THE_UNSEEN * squared / expected / units if expected > 0 else 0.0
    low, high = gamma_bounds(value, variance, unseen)
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)


def loss_inflation(losses_N: Array, groups: ImageGroups | None) -> float:
    """Return by how much groups multiply the variance of a mean loss.

    A single group counts as one image: losses have no largest value that could end the interval.
    """
    return min(inflation(losses_N, groups), float(len(losses_N)))


def _compute_implied_moments(probabilities_NK: Array, surprise: float) -> tuple[float, float]:
    """Return mean loss and mean squared loss of labels drawn from the probabilities.

    A share of `surprise` has any label, so that a model that is quite sure implies a loss too.
    """
    num_classes = probabilities_NK.shape[1]
    expected_N, squared_N = np.empty(len(probabilities_NK)), np.empty(len(probabilities_NK))
    for rows in row_slices(probabilities_NK.shape):
        probabilities = np.maximum(probabilities_NK[rows].astype(np.float64), _LEAST_PROBABILITY)
        losses = -np.log(probabilities)
        drawn = (1 - surprise) * probabilities + surprise / num_classes
        expected_N[rows] = (drawn * losses).sum(axis=1)
        squared_N[rows] = (drawn * losses**2).sum(axis=1)
    return float(np.sort(expected_N).mean()), float(np.sort(squared_N).mean())


def gamma_bounds(mean: float, variance: float, unseen: float) -> tuple[float, float]:
    """Return both ends of the gamma interval of a mean loss.

    Args:
        mean: mean of the losses.
        variance: variance of that mean.
        unseen: increase of the mean by rare large losses that no sample has.
    """
    from scipy.special import gammaincinv

    low = high = mean
    if mean > 0 and variance > 0:
        low = variance / mean * float(gammaincinv(mean**2 / variance, TAIL))
    more, wider = mean + unseen, variance + unseen**2
    if more > 0 and wider > 0:
        high = wider / more * float(gammaincinv(more**2 / wider, 1 - TAIL))
    return low, high
