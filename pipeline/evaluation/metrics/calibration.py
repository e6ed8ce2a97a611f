"""Reliability diagram, calibration error and class shares; `temperature.py` fits the temperature.

Shapes: N samples, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import (
    TAIL,
    ImageGroups,
    MetricEstimate,
    inflation,
    proportions,
    rows_of_classes,
    shares,
)
from patchline.pipeline.evaluation.metrics.row_pieces import column_pieces, row_slices
from patchline.pipeline.evaluation.metrics.temperature import WIDEST, TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import counted, visible

Array = np.ndarray[Any, Any]
_BINS = 10
_STEPS, _SIMULATIONS = 12, 250
_LARGEST_SHIFT = 8.0  # standard errors
_ROUNDING = 1e-12
_NEAR, _MOST_ERROR, _NAMED = 1.1, 0.02, 3


class ReliabilityBin(FrozenModel):
    """The images whose highest probability lies between two bounds."""

    low: float
    """Lower bound, which is excluded but for the first bin."""
    high: float
    """Upper bound, which is included."""
    images: int
    confidence: float
    """Mean of the highest probabilities; the middle of the bin where it is empty."""
    accuracy: MetricEstimate


class ClassShare(FrozenModel):
    """How often a class is expected, by its probabilities, and how often it is seen."""

    mean_probability: float
    """Mean probability of the class over all images: the share that a calibrated model expects."""
    share: MetricEstimate
    """Share of the images that are of the class; the interval is that of the share, given how much
    the probabilities tell about each image."""
    state: Literal["agrees", "differs", "unknown"]
    """differs: by more than chance and a tenth, at a level of 5% for all classes together. unknown:
    the interval is so wide that its ends differ by more than a factor of 4."""


def class_shares(
    probabilities_NK: Array, labels: Array, groups: ImageGroups | None = None
) -> tuple[ClassShare, ...]:
    """Return the calibration of each class "in the large", in the order of the K classes.

    The number of images of a class has the variance sum p (1 - p) if the model is calibrated; the
    observed one, sum (y - p)^2, counts where it is larger, and both for no less than one image. The
    interval and the test are those of a proportion with that variance.

    Args:
        probabilities_NK: probabilities of the classes, or labels, for at least one image.
        labels: class indices (N), or 1 where an image has a label (N, K).
        groups: the groups that the images form; None if the images are independent.
    """
    from scipy.special import betainc

    n, classes = probabilities_NK.shape
    mean_K, share_K, size_K = np.empty((3, classes))
    for k, column_N in column_pieces(probabilities_NK, np.arange(classes)):
        p_N = column_N.astype(np.float64)
        is_of_class_N = (labels == k if labels.ndim == 1 else labels[:, k]).astype(np.float64)
        mean, share, gaps_N = float(p_N.mean()), float(is_of_class_N.mean()), is_of_class_N - p_N
        variance = max(1.0, float((p_N * (1 - p_N)).sum()), float((gaps_N**2).sum()))
        between = float(np.clip(share if 0 < share < 1 else mean, _ROUNDING, 1 - _ROUNDING))
        size = n**2 * between * (1 - between) / variance / inflation(gaps_N, groups)
        mean_K[k], share_K[k], size_K[k] = mean, share, size
    seen_K, rest_K = share_K * size_K, (1 - share_K) * size_K
    above_K = np.where(seen_K, betainc(np.maximum(seen_K, _ROUNDING), rest_K + 1, mean_K), 1.0)
    above_K += np.where(rest_K, betainc(seen_K + 1, np.maximum(rest_K, _ROUNDING), mean_K), 0.0)
    is_chance_K = np.minimum(above_K, 2 - above_K) > 2 * TAIL / classes
    estimates = proportions(share_K * n, np.full(classes, n), size_K)
    found = []
    for mean, is_chance, estimate in zip(mean_K.tolist(), is_chance_K, estimates, strict=True):
        is_near = estimate.low / _NEAR <= mean <= estimate.high * _NEAR
        is_wide = estimate.low == 0 or estimate.high > WIDEST * estimate.low
        state: Literal["agrees", "differs", "unknown"] = "unknown" if is_wide else "agrees"
        if not is_chance and not is_near:
            state = "differs"
        found.append(ClassShare(mean_probability=mean, share=estimate, state=state))
    return tuple(found)


def contradiction(
    names: Sequence[str], shares_K: Sequence[ClassShare], ece: MetricEstimate, kind: str
) -> str:
    """Return what images show against the probabilities, in words; empty if nothing.

    That is a class whose mean probability differs from its share, or an expected calibration error
    whose interval is above 0.02.

    Args:
        names: names of the K classes, or labels.
        shares_K: shares of the K classes, or labels.
        ece: expected calibration error.
        kind: name of an image within a sentence, such as `test image`.
    """
    differing = [each for each in zip(names, shares_K, strict=True) if each[1].state == "differs"]
    differing.sort(key=lambda each: -abs(each[1].mean_probability - each[1].share.value))
    found = [
        f"'{visible(name)}' has a mean probability of {each.mean_probability:.1%} and is "
        f"{each.share.value:.1%} of the images ({each.share.low:.1%} to {each.share.high:.1%})"
        for name, each in differing[:_NAMED]
    ]
    if len(differing) > _NAMED:
        found.append(f"{len(differing) - _NAMED:,} more differ")
    if ece.low > _MOST_ERROR:
        found.append(
            f"the expected calibration error is {ece.value:.3f} ({ece.low:.3f} to {ece.high:.3f})"
        )
    images = shares_K[0].share.n
    return f"on {counted(images, kind)}, {', '.join(found)}" if found else ""


class TopProbabilities(NamedTuple):
    """The highest probability of each sample, and whether its class is right."""

    confidence_N: Array
    right_N: Array
    groups: ImageGroups | None = None
    """The groups that the samples form; None if the samples are independent."""

    @classmethod
    def of(
        cls, probabilities_NK: Array, labels_N: Array, groups: ImageGroups | None = None
    ) -> Self:
        """Compute them from the given probabilities."""
        confidence = probabilities_NK.max(axis=1).astype(np.float64)
        return cls(confidence, probabilities_NK.argmax(axis=1) == labels_N, groups)

    @classmethod
    def uncalibrated(
        cls,
        probabilities_NK: Array,
        labels_N: Array,
        fit: TemperatureFit,
        groups: ImageGroups | None = None,
    ) -> Self:
        """Compute them from the probabilities before calibration."""
        confidence, right = np.empty(len(labels_N)), np.empty(len(labels_N), bool)
        for rows in row_slices(probabilities_NK.shape):
            before = fit.uncalibrated_probabilities(probabilities_NK[rows])
            confidence[rows] = before.max(axis=1)
            right[rows] = before.argmax(axis=1) == labels_N[rows]
        return cls(confidence, right, groups)


def reliability_of(answers: TopProbabilities, bins: int = _BINS) -> tuple[ReliabilityBin, ...]:
    """Return the reliability diagram of the answers for N samples."""
    counts = _bin(answers, bins)
    edges = np.linspace(0, 1, bins + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    images = counts.images
    confidence = np.where(images > 0, counts.confidence / np.maximum(images, 1), middles)
    rows = rows_of_classes(_bin_of(answers.confidence_N, bins), bins)
    accuracies = shares([answers.right_N[each] for each in rows], rows, answers.groups)
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
    """Sum of the highest probabilities in each bin."""


def _bin(answers: TopProbabilities, bins: int) -> _Bins:
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


def calibration_error_of(answers: TopProbabilities) -> MetricEstimate:
    """Return the expected calibration error in ten bins of equal width (arXiv 1706.04599).

    The estimate is biased: chance alone creates gaps between confidence and accuracy. The interval
    therefore contains the errors of simulated models for which the observed value is not among the
    2.5% lowest or highest simulated values. The models come from three families: the observed gaps
    scaled, and the accuracy of all bins lowered, or raised, by multiples of its standard error.

    With no samples the value is 0 and the interval spans 0 to 1. With groups, as many samples are
    simulated as there would be independent ones with the variance of the gaps.

    Args:
        answers: the answers for N samples.
    """
    counts = _bin(answers, _BINS)
    n = len(answers.right_N)
    if n == 0:
        return MetricEstimate(value=0.0, low=0.0, high=1.0, n=0)
    images, hits, total = (part[counts.images > 0] for part in counts)
    value = float(np.abs(hits - total).sum() / n)
    confidence = np.minimum(total / images, 1.0)
    if answers.groups is not None:
        factor = answers.groups.inflation(_gaps(answers, counts))
        if n / factor < 1:
            return MetricEstimate(value=value, low=0.0, high=1.0, n=n)
        images, hits = images / factor, hits / factor
    accuracies_FSB = _candidate_accuracies(images, hits, confidence)
    errors_FS = np.abs(accuracies_FSB - confidence) @ (images / images.sum())
    tails_FS = _tails(value, accuracies_FSB, images, confidence)
    accepted = _find_accepted(errors_FS, tails_FS)
    return MetricEstimate(
        value=value, low=float(min([value, *accepted])), high=float(max([value, *accepted])), n=n
    )


def _gaps(answers: TopProbabilities, counts: _Bins) -> Array:
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


def _find_accepted(errors_FS: Array, tails_FS: Array) -> Array:
    """Return the errors at which the observed one is not extreme, also between the steps."""
    steps = np.arange(_STEPS)
    between = np.linspace(0, _STEPS - 1, 20 * _STEPS)
    accepted = [np.empty(0)]
    for errors_S, tails_S in zip(errors_FS, tails_FS, strict=True):
        tails = np.interp(between, steps, tails_S)
        inside = (tails >= TAIL) & (tails <= 1 - TAIL)
        accepted.append(np.interp(between, steps, errors_S)[inside])
    return np.concatenate(accepted)
