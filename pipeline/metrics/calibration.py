"""Reliability diagram and expected calibration error; `temperature.py` fits the temperature.

Shapes: N samples, K classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.image_groups import ImageGroups, shares
from patchline.pipeline.metrics.intervals import TAIL, MetricEstimate, proportions
from patchline.pipeline.metrics.row_pieces import row_slices

Array = np.ndarray[Any, Any]
_BINS = 10
_STEPS, _SIMULATIONS = 12, 250
_LARGEST_SHIFT = 8.0  # standard errors
_ROUNDING = 1e-12
_LEAST_PROBABILITY = 1e-300


class ReliabilityBin(FrozenModel):
    """The images whose highest probability lies between two bounds."""

    low: float
    """Excluded, but for the first bin."""
    high: float
    """Included."""
    images: int
    confidence: float
    """Mean of the highest probabilities; the middle of the bin where it is empty."""
    accuracy: MetricEstimate


def with_temperature(probabilities_NK: Array, temperature: float) -> Array:
    """Return softmax(temperature * log p): probabilities before their calibration, (N, K)."""
    from scipy.special import softmax

    logs = np.log(np.maximum(probabilities_NK.astype(np.float64), _LEAST_PROBABILITY))
    uncalibrated: Array = softmax(temperature * logs, axis=1)
    return uncalibrated


class Answers(NamedTuple):
    """The highest probability of each sample, and whether its class is right."""

    confidence_N: Array
    right_N: Array

    @classmethod
    def of(cls, probabilities_NK: Array, labels_N: Array) -> Self:
        """Compute them from the given probabilities."""
        confidence = probabilities_NK.max(axis=1).astype(np.float64)
        return cls(confidence, probabilities_NK.argmax(axis=1) == labels_N)

    @classmethod
    def uncalibrated(cls, probabilities_NK: Array, labels_N: Array, temperature: float) -> Self:
        """Compute them from the probabilities before calibration."""
        confidence, right = np.empty(len(labels_N)), np.empty(len(labels_N), bool)
        for rows in row_slices(probabilities_NK.shape):
            before = with_temperature(probabilities_NK[rows], temperature)
            confidence[rows] = before.max(axis=1)
            right[rows] = before.argmax(axis=1) == labels_N[rows]
        return cls(confidence, right)


def reliability(
    probabilities_NK: Array, labels_N: Array, bins: int = _BINS
) -> tuple[ReliabilityBin, ...]:
    """Return the reliability diagram: bins of equal width over the highest probability."""
    return reliability_of(Answers.of(probabilities_NK, labels_N), bins)


def reliability_of(
    answers: Answers, bins: int = _BINS, groups: ImageGroups | None = None
) -> tuple[ReliabilityBin, ...]:
    """Return the reliability diagram of such answers.

    Args:
        answers: of N samples.
        bins: their number.
        groups: of the samples; None if these are independent.
    """
    counts = _binned(answers, bins)
    edges = np.linspace(0, 1, bins + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    images = counts.images
    confidence = np.where(images > 0, counts.confidence / np.maximum(images, 1), middles)
    accuracies = (
        proportions(counts.hits, images)
        if groups is None
        else shares(answers.right_N, _bin_of(answers.confidence_N, bins), bins, groups)
    )
    return tuple(
        ReliabilityBin(
            low=float(edges[b]),
            high=float(edges[b + 1]),
            images=int(images[b]),
            confidence=float(confidence[b]),
            accuracy=accuracy,
        )
        for b, accuracy in enumerate(accuracies)
    )


class _Bins(NamedTuple):
    images: Array
    hits: Array
    confidence: Array
    """Summed."""


def _binned(answers: Answers, bins: int) -> _Bins:
    order = np.argsort(answers.confidence_N, kind="stable")  # makes sums independent of the order
    confidence, right = answers.confidence_N[order], answers.right_N[order]
    places = _bin_of(confidence, bins)
    images = np.bincount(places, minlength=bins)
    hits, total = (
        np.bincount(places, weights=weights, minlength=bins)
        for weights in (right.astype(np.float64), confidence)
    )
    return _Bins(images, hits, total)


def _bin_of(confidence_N: Array, bins: int) -> Array:
    places: Array = np.clip(np.ceil(confidence_N * bins).astype(np.int64) - 1, 0, bins - 1)
    return places


def expected_calibration_error(
    probabilities_NK: Array, labels_N: Array, groups: ImageGroups | None = None
) -> MetricEstimate:
    """Return the expected calibration error: see `calibration_error_of`."""
    return calibration_error_of(Answers.of(probabilities_NK, labels_N), groups)


def calibration_error_of(answers: Answers, groups: ImageGroups | None = None) -> MetricEstimate:
    """Return the expected calibration error in ten bins of equal width (arXiv 1706.04599).

    The estimate is biased: chance alone creates gaps between confidence and accuracy. The interval
    therefore contains the errors of simulated models for which the observed value is not among the
    2.5% lowest or highest simulated values. The models come from three families: the observed gaps
    scaled, and the accuracy of all bins lowered, or raised, by multiples of its standard error.

    With no samples the value is 0 and the interval spans 0 to 1. With groups, as many samples are
    simulated as there would be independent ones with the variance of the gaps.

    Args:
        answers: of N samples.
        groups: of the samples; None if these are independent.
    """
    counts = _binned(answers, _BINS)
    n = len(answers.right_N)
    if n == 0:
        return MetricEstimate(value=0.0, low=0.0, high=1.0, n=0)
    images, hits, total = (part[counts.images > 0] for part in counts)
    value = float(np.abs(hits - total).sum() / n)
    confidence = np.minimum(total / images, 1.0)
    if groups is not None:
        factor = groups.inflation(_gaps(answers, counts))
        if n / factor < 1:
            return MetricEstimate(value=value, low=0.0, high=1.0, n=n)
        images, hits = images / factor, hits / factor
    accuracies_FSB = _candidate_accuracies(images, hits, confidence)
    errors_FS = np.abs(accuracies_FSB - confidence) @ (images / images.sum())
    tails_FS = _tails(value, accuracies_FSB, images, confidence)
    accepted = _accepted(errors_FS, tails_FS)
    return MetricEstimate(
        value=value, low=float(min([value, *accepted])), high=float(max([value, *accepted])), n=n
    )


def _gaps(answers: Answers, counts: _Bins) -> Array:
    """Return what each sample adds to the calibration error (N): its gap, signed as its bin's."""
    signs = np.sign(counts.hits - counts.confidence)
    of_bin_N = signs[_bin_of(answers.confidence_N, len(signs))]
    gaps: Array = of_bin_N * (answers.right_N - answers.confidence_N)
    return gaps


def _candidate_accuracies(images: Array, hits: Array, confidence: Array) -> Array:
    """Return the accuracies in B bins of conceivable models: F families, S steps in each."""
    smooth = (hits + 0.5) / (images + 1)
    deviation = np.sqrt(smooth * (1 - smooth) / images)
    scales = np.linspace(0, 2, _STEPS)[:, None]
    shifts = np.linspace(0, 1, _STEPS)[:, None] ** 2 * _LARGEST_SHIFT
    accuracy = hits / images
    families = (
        confidence + scales * (accuracy - confidence),
        accuracy - shifts * deviation,
        accuracy + shifts * deviation,
    )
    accuracies: Array = np.clip(np.stack(families), 0, 1)
    return accuracies


def _tails(value: float, accuracies_FSB: Array, images: Array, confidence: Array) -> Array:
    """Return how often each model's simulated error exceeds the observed one; ties count half."""
    generator = np.random.default_rng(0)
    n = round(float(images.sum()))
    drawn_RB = generator.multinomial(n, images / images.sum(), size=_SIMULATIONS)
    hits_FSRB = generator.binomial(drawn_RB, accuracies_FSB[:, :, None, :])
    errors_FSR = np.abs(hits_FSRB - drawn_RB * confidence).sum(axis=3) / n
    above = (errors_FSR > value + _ROUNDING).mean(axis=2)
    not_below = (errors_FSR > value - _ROUNDING).mean(axis=2)
    tails: Array = (above + not_below) / 2
    return tails


def _accepted(errors_FS: Array, tails_FS: Array) -> Array:
    """Return the errors at which the observed one is not extreme, also between the steps."""
    steps = np.arange(_STEPS)
    between = np.linspace(0, _STEPS - 1, 20 * _STEPS)
    accepted = [np.empty(0)]
    for errors_S, tails_S in zip(errors_FS, tails_FS, strict=True):
        tails = np.interp(between, steps, tails_S)
        inside = (tails >= TAIL) & (tails <= 1 - TAIL)
        accepted.append(np.interp(between, steps, errors_S)[inside])
    return np.concatenate(accepted)
