"""Measure on labelled thumbnails whether a mirrored image still shows its class.

Two linear probes are fitted to histograms of gradients (Dalal and Triggs, CVPR 2005, section 4),
colours and coarse pixels, and tested out of fold:

- **Classes.** A probe that has seen originals alone scores held-out images and their mirror images.
  What counts is the share of its skill that mirrored images keep: 1 where they show the same
  classes, about 0 where they show nothing that it knows, and below where they show another class.
- **Originals.** For each class, a probe tells originals from mirror images. It cannot where both
  occur. It can for text, for views from one side, and for organs, however hard the classes are.

N images, S pixels on a side, D features, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrc, stdtr

from patchline.pipeline.data.symmetry.mirror_answer import Answer

Array = np.ndarray[Any, Any]

SIDE = 32
"""Pixels on a side of the thumbnails."""
FEWEST = 24
"""Images below which nothing is concluded."""
FOLDS = 5
_ORIENTATIONS = 8
_RIDGE = 1.0
"""Penalty, relative to the mean variance of a feature."""
_KEPT = 0.5
"""Share of the skill that mirrored images of the same classes must keep."""
_TOLD_APART, _ALONE = 0.7, 0.65
"""Largest share of mirror images that a probe may tell from originals; less without classes."""
_ROUNDING = 1e-6
_LEVEL = 0.001
"""Of each test, shared by the classes."""
_Z = 1.96
_SUSPICIOUS = 0.02
"""A class that fails its own test at this level is not called symmetric; it stays unknown."""


class Share(NamedTuple):
    """A share of some images with its 95% Wilson interval."""

    value: float
    low: float
    high: float


class ClassEvidence(NamedTuple):
    """A class whose mirror images differ from it."""

    label: int
    originals: float
    """Share of its images that are recognised."""
    mirrored: float
    """Share of its mirror images that are recognised."""
    other: int
    """The class that most of the other mirror images are taken for."""
    as_other: Share
    """Share of the mirror images that are taken for that class."""


@dataclass(frozen=True)
class Measured:
    """The answer and what it rests on."""

    answer: Answer
    images: int
    accuracy: Share
    """Of the class probe on held-out images."""
    mirrored: Share
    """Of the same probe on their mirror images."""
    told_apart: Share
    """Share of held-out images that a probe tells from their mirror images."""
    classes: tuple[ClassEvidence, ...]
    """The classes that are certainly not symmetric by the class probe, the clearest first."""
    sides: tuple[tuple[int, float], ...]
    """Classes whose originals are certainly told from mirror images, and how often."""
    is_skilled: bool
    """Whether the probe recognises classes at all."""


def measured(images_NSSC: Array, labels_N: Array, units_N: Array) -> Measured:
    """Compare images with their mirror images.

    Args:
        images_NSSC: uint8 RGB thumbnails of `SIDE` pixels.
        labels_N: numbers of the classes from 0.
        units_N: what belongs together, such as copies; never on both sides of a fold.
    """
    count = len(images_NSSC)
    originals_ND = _features(images_NSSC)
    mirrored_ND = _features(images_NSSC[:, :, ::-1])
    _, places = np.unique(units_N, return_inverse=True)
    folds_N = _ranks(labels_N, places) % FOLDS
    scores_NK, mirrored_NK = _class_scores(originals_ND, mirrored_ND, labels_N, folds_N)
    told_N = _told_apart(originals_ND - mirrored_ND, labels_N, folds_N)
    right_N = scores_NK.argmax(1) == labels_N
    guesses_N = mirrored_NK.argmax(1)
    pooled, by_class = _kept_skill(scores_NK, mirrored_NK, labels_N)
    classes, sides = [], []
    number = scores_NK.shape[1]
    for label, (lost_here, _) in enumerate(by_class):
        own_N = labels_N == label
        size, hits = int(own_N.sum()), float(told_N[own_N].sum())
        if number > 1 and lost_here < _LEVEL / number:
            others = np.bincount(guesses_N[own_N & (guesses_N != label)], minlength=number)
            other = int(others.argmax())
            as_other = share(int(others[other]), size)
            kept = float((guesses_N[own_N] == label).mean())
            classes.append(
                ClassEvidence(label, float(right_N[own_N].mean()), kept, other, as_other)
            )
        if size and bdtrc(np.ceil(hits) - 1, size, _TOLD_APART) < _LEVEL / number:
            sides.append((label, hits / size))
    lost, kept_more = pooled
    told = share(float(told_N.sum()), count)
    skilled = number > 1 and _probability_of_less(_lead(scores_NK, labels_N), 0.0) < _LEVEL
    answer: Answer = "unknown"
    if count < FEWEST:
        pass
    elif classes or sides or told.low > _TOLD_APART or (number > 1 and lost < _LEVEL):
        answer = "asymmetric"
    elif number > 1 and min(lost for lost, _ in by_class) < _SUSPICIOUS:
        pass
    elif number == 1:
        answer = "symmetric" if told.high < _ALONE else "unknown"
    elif skilled and kept_more < 2 * _LEVEL and told.value < _TOLD_APART:
        answer = "symmetric"
    return Measured(
        answer=answer,
        images=count,
        accuracy=share(int(right_N.sum()), count),
        mirrored=share(int((guesses_N == labels_N).sum()), count),
        told_apart=told,
        classes=tuple(sorted(classes, key=lambda each: (each.mirrored - each.originals, each))),
        sides=tuple(sorted(sides, key=lambda each: (-each[1], each[0]))),
        is_skilled=skilled,
    )


def share(hits: float, count: int) -> Share:
    """Return a share with its Wilson interval."""
    value, square = hits / max(count, 1), _Z * _Z
    size = max(count, 1)
    centre = (value + square / (2 * size)) / (1 + square / size)
    half = _Z * np.sqrt(value * (1 - value) / size + square / (4 * size**2)) / (1 + square / size)
    return Share(value, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def _features(images_NSSC: Array) -> Array:
    """Return what the probes see of each image (N, D)."""
    pixels = images_NSSC.astype(np.float32) / 255
    count, grey = len(pixels), pixels.mean(-1)
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    angle = np.arctan2(down, across) / (2 * np.pi) * _ORIENTATIONS
    lower = np.floor(angle)
    strength = np.hypot(across, down)
    histogram = np.zeros((*grey.shape, _ORIENTATIONS), np.float32)
    for step, weight in ((0, 1 - (angle - lower)), (1, angle - lower)):
        bins = ((lower + step) % _ORIENTATIONS).astype(np.int64)
        part = np.zeros_like(histogram)
        np.put_along_axis(part, bins[..., None], (strength * weight)[..., None], axis=-1)
        histogram += part
    fine, coarse = _cells(histogram, 4), _cells(histogram, 8)
    colours = _cells(pixels, 8).reshape(count, -1) * 2 - 1
    blurred = _cells(grey[..., None], 2).reshape(count, -1)
    blurred -= blurred.mean(1, keepdims=True)
    blurred /= blurred.std(1, keepdims=True) + 0.02
    parts = (8 * _normalised(fine), 4 * _normalised(coarse), colours, 0.3 * blurred)
    return np.concatenate(parts, axis=1).astype(np.float64)


def _cells(values_NSSD: Array, side: int) -> Array:
    """Return the mean of each cell of some pixels on a side."""
    count, height, width, depth = values_NSSD.shape
    shape = (count, height // side, side, width // side, side, depth)
    cells: Array = values_NSSD.reshape(shape).mean((2, 4))
    return cells


def _normalised(cells: Array) -> Array:
    whole = cells.sum((1, 2, 3), keepdims=True)
    histogram: Array = np.sqrt(cells / (whole + 1e-6)).reshape(len(cells), -1)
    return histogram


def _ranks(labels_N: Array, units_N: Array) -> Array:
    """Return a number for each unit that grows within its class, so that folds are balanced."""
    first: dict[int, int] = {}
    for _, unit in sorted(zip(labels_N.tolist(), units_N.tolist(), strict=True)):
        first.setdefault(unit, len(first))
    return np.array([first[unit] for unit in units_N.tolist()])


def _ridge(inputs_ND: Array, targets_NK: Array) -> Array:
    """Return the weights (D, K) of a ridge regression, by whichever system is smaller."""
    count, depth = inputs_ND.shape
    penalty = _RIDGE * float((inputs_ND**2).sum()) / depth + 1e-9
    if count < depth:
        gram = inputs_ND @ inputs_ND.T
        penalty *= depth / count
        gram[np.diag_indices_from(gram)] += penalty
        weights: Array = inputs_ND.T @ np.linalg.solve(gram, targets_NK)
        return weights
    gram = inputs_ND.T @ inputs_ND
    gram[np.diag_indices_from(gram)] += penalty
    solved: Array = np.linalg.solve(gram, inputs_ND.T @ targets_NK)
    return solved


def _class_scores(
    originals_ND: Array, mirrored_ND: Array, labels_N: Array, folds_N: Array
) -> tuple[Array, Array]:
    """Return the out-of-fold scores of images and of their mirror images (N, K)."""
    targets_NK = np.eye(int(labels_N.max()) + 1)[labels_N]
    scores_NK, mirrored_NK = np.zeros_like(targets_NK), np.zeros_like(targets_NK)
    for fold in range(FOLDS):
        held, rest = folds_N == fold, folds_N != fold
        if not held.any() or not rest.any():
            continue
        centre, prior = originals_ND[rest].mean(0), targets_NK[rest].mean(0)
        weights = _ridge(originals_ND[rest] - centre, targets_NK[rest] - prior)
        scores_NK[held] = (originals_ND[held] - centre) @ weights + prior
        mirrored_NK[held] = (mirrored_ND[held] - centre) @ weights + prior
    return scores_NK, mirrored_NK


def _told_apart(differences_ND: Array, labels_N: Array, folds_N: Array) -> Array:
    """Return 1 for each image that a probe of its class tells from its mirror image, else 0.

    The probe is linear in what mirroring changes, so it is right about an image exactly if it is
    right about the mirror image. Where it has nothing to go by, an image counts half.
    """
    told_N = np.full(len(labels_N), 0.5)
    for label in np.unique(labels_N):
        for fold in range(FOLDS):
            rest = (labels_N == label) & (folds_N != fold)
            held = (labels_N == label) & (folds_N == fold)
            if rest.sum() > 1 and held.any():
                weights = _ridge(differences_ND[rest], np.ones((int(rest.sum()), 1)))
                value = (differences_ND[held] @ weights)[:, 0]
                told_N[held] = np.where(np.abs(value) < _ROUNDING, 0.5, value > 0)
    return told_N


def _lead(scores_NK: Array, labels_N: Array) -> Array:
    """Return how far the score of each image's class is above its mean for other images (N,)."""
    own_N = scores_NK[np.arange(len(labels_N)), labels_N]
    return own_N - _elsewhere(scores_NK, labels_N)[labels_N]


def _elsewhere(scores_NK: Array, labels_N: Array) -> Array:
    """Return the mean score of each class for the images of other classes (K,)."""
    own_NK = np.eye(scores_NK.shape[1], dtype=np.bool_)[labels_N]
    others_K = (~own_NK).sum(0)
    means: Array = np.where(own_NK, 0, scores_NK).sum(0) / np.maximum(others_K, 1)
    return means


def _kept_skill(
    scores_NK: Array, mirrored_NK: Array, labels_N: Array
) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Test whether mirror images keep half of the skill, pooled and for each class.

    Returns:
        The p-values of keeping at least half of it, and of keeping at most half.
    """
    own_N = np.arange(len(labels_N)), labels_N
    base_N = _elsewhere(scores_NK, labels_N)[labels_N]
    contrast_N = mirrored_NK[own_N] - _KEPT * scores_NK[own_N] - (1 - _KEPT) * base_N
    by_class = [_both_sides(contrast_N[labels_N == k]) for k in range(scores_NK.shape[1])]
    return _both_sides(contrast_N), by_class


def _both_sides(values: Array) -> tuple[float, float]:
    return _probability_of_less(-values, 0.0), _probability_of_less(values, 0.0)


def _probability_of_less(values: Array, limit: float) -> float:
    """Return the p-value of Student's t-test of a mean of at most the limit."""
    if len(values) < 4:  # noqa: PLR2004 - three values tell no deviation
        return 1.0
    error = values.std(ddof=1) / np.sqrt(len(values)) + 1e-9
    return float(1 - stdtr(len(values) - 1, (values.mean() - limit) / error))
