"""Measure on labelled thumbnails whether a mirrored image still shows its class.

Two linear probes are fitted to histograms of gradients (Dalal and Triggs, CVPR 2005, section 4),
colours and coarse pixels, and tested out of fold:

- **Classes.** A probe that has seen originals alone scores held-out images and their mirror images.
  What counts is the share of its skill that mirrored images keep: 1 where they show the same
  classes, about 0 where they show nothing that it knows, and below where they show another class.
- **Originals.** For each class, a probe tells originals from mirror images. It cannot where both
  occur. It can for text, for views from one side, and for organs, however hard the classes are.

What counts is a unit: an image, or all images of a group. A unit is scored by probes that have seen
other units of its class; an image whose class is one unit is left out. Nothing is concluded from a
probe without skill: where it does not recognise originals, nothing is lost on mirror images.

N images, S pixels on a side, D features, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task, label_pairs
from patchline.pipeline.data.manifests.same_images import FILE, column_of
from patchline.pipeline.data.symmetry.assumed_symmetries import Answer

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
_FLIPS = 999
"""Random choices of the units to mirror, which the second probe is compared with."""
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
class MeasuredSymmetry:
    """The answer and what it rests on."""

    answer: Answer
    images: int
    """The number of images that were scored."""
    left_out: int
    """Images that no probe could be tested on, as their class is one image or one group."""
    accuracy: Share
    """The accuracy of the class probe on held-out images."""
    mirrored: Share
    """The accuracy of the same probe on their mirror images."""
    told_apart: Share
    """Share of held-out images that a probe tells from their mirror images."""
    classes: tuple[ClassEvidence, ...]
    """The classes that are certainly not symmetric by the class probe, the clearest first."""
    sides: tuple[tuple[int, float], ...]
    """Classes whose originals are certainly told from mirror images, and how often."""
    is_skilled: bool
    """Whether the probe recognises classes at all."""


def compare_mirror_images(images_NSSC: Array, labels_N: Array, units_N: Array) -> MeasuredSymmetry:
    """Compare images with their mirror images.

    Args:
        images_NSSC: the images as uint8 RGB thumbnails of `SIDE` pixels.
        labels_N: the class of each image, by number from 0.
        units_N: a number for each image, equal for images that belong together, such as copies;
            these are never on both sides of a fold.
    """
    from scipy.special import bdtrc

    originals_ND = _features(images_NSSC)
    mirrored_ND = _features(images_NSSC[:, :, ::-1])
    _, units_N = np.unique(units_N, return_inverse=True)
    folds_N = _ranks(labels_N, units_N) % FOLDS
    scores_NK, mirrored_NK = _class_scores(originals_ND, mirrored_ND, labels_N, folds_N)
    told_N, told_by_chance = _tell_apart(originals_ND - mirrored_ND, labels_N, folds_N, units_N)
    scored_N = np.isfinite(told_N)
    guesses_NK = np.stack([_guesses(scores_NK), _guesses(mirrored_NK)], axis=1)
    right_N, kept_N = np.where(scored_N, (guesses_NK == labels_N[:, None]).T, np.nan)
    lead_N, contrast_N = _compute_kept_skill(scores_NK, mirrored_NK, labels_N, folds_N)
    number = scores_NK.shape[1]
    classes, sides, suspicious = [], [], False
    for label in range(number):
        own_N = (labels_N == label) & scored_N
        lost = _at_least_zero(_by_unit(contrast_N, units_N, own_N))
        skill = _at_most_zero(_by_unit(lead_N, units_N, own_N))
        suspicious |= lost < _SUSPICIOUS
        if number > 1 and max(lost, skill) < _LEVEL / number:
            others = np.where(guesses_NK[:, 1] == label, -1, guesses_NK[:, 1])
            other = int(np.bincount(others[own_N & (others >= 0)], minlength=number).argmax())
            as_other = _share(_by_unit((others == other).astype(float), units_N, own_N))
            recognised = float(right_N[own_N].mean()), float(kept_N[own_N].mean())
            classes.append(ClassEvidence(label, *recognised, other, as_other))
        told_U = _by_unit(told_N, units_N, own_N)
        if bdtrc(np.floor(told_U.sum()) - 1, len(told_U), _TOLD_APART) < _LEVEL / number:
            sides.append((label, float(told_N[own_N].mean())))
    contrast_U = _by_unit(contrast_N, units_N, scored_N)
    told = _share(_by_unit(told_N, units_N, scored_N))
    skilled = number > 1 and _at_most_zero(_by_unit(lead_N, units_N, scored_N)) < _LEVEL
    seen = len(np.unique(labels_N[scored_N]))
    is_lost = skilled and _at_least_zero(contrast_U, seen) < _LEVEL
    images = int(scored_N.sum())
    answer: Answer = "unknown"
    if images < FEWEST:
        pass
    elif classes or sides or is_lost or (told.low > _TOLD_APART and told_by_chance <= _LEVEL):
        answer = "asymmetric"
    elif 2 * images < len(images_NSSC) or (number > 1 and suspicious):
        pass
    elif number == 1:
        answer = "symmetric" if told.high < _ALONE else "unknown"
    elif skilled and _at_most_zero(contrast_U) < 2 * _LEVEL and told.value < _TOLD_APART:
        answer = "symmetric"
    return MeasuredSymmetry(
        answer=answer,
        images=images,
        left_out=len(images_NSSC) - images,
        accuracy=_share(_by_unit(right_N, units_N, scored_N)),
        mirrored=_share(_by_unit(kept_N, units_N, scored_N)),
        told_apart=told,
        classes=tuple(sorted(classes, key=lambda each: (each.mirrored - each.originals, each))),
        sides=tuple(sorted(sides, key=lambda each: (-each[1], each[0]))),
        is_skilled=skilled,
    )


def _share(values_U: Array) -> Share:
    """Return the mean of units' values of 0 to 1 with its Wilson interval."""
    size, square = max(len(values_U), 1), _Z * _Z
    value = float(values_U.sum()) / size
    centre = (value + square / (2 * size)) / (1 + square / size)
    half = _Z * np.sqrt(value * (1 - value) / size + square / (4 * size**2)) / (1 + square / size)
    return Share(value, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def _by_unit(values_N: Array, units_N: Array, chosen_N: Array) -> Array:
    """Return the mean over the chosen images of each unit that has any, where it is known (U,)."""
    chosen_N = chosen_N & np.isfinite(values_N)
    counts = np.bincount(units_N[chosen_N])
    sums = np.bincount(units_N[chosen_N], values_N[chosen_N])
    means: Array = sums[counts > 0] / counts[counts > 0]
    return means


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
    parts = (8 * _normalize(fine), 4 * _normalize(coarse), colours, 0.3 * blurred)
    return np.concatenate(parts, axis=1).astype(np.float64)


def _cells(values_NSSD: Array, side: int) -> Array:
    """Return the mean of each cell of some pixels on a side."""
    count, height, width, depth = values_NSSD.shape
    shape = (count, height // side, side, width // side, side, depth)
    cells: Array = values_NSSD.reshape(shape).mean((2, 4))
    return cells


def _normalize(cells: Array) -> Array:
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
    if count < depth:
        weights: Array = inputs_ND.T @ _of_images(inputs_ND, targets_NK)
        return weights
    gram = inputs_ND.T @ inputs_ND
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / depth + 1e-9
    solved: Array = np.linalg.solve(gram, inputs_ND.T @ targets_NK)
    return solved


def _of_images(inputs_ND: Array, targets_NK: Array) -> Array:
    """Return how much each image counts in the weights of a ridge regression (N, K)."""
    gram = inputs_ND @ inputs_ND.T
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / len(gram) + 1e-9
    counts: Array = np.linalg.solve(gram, targets_NK)
    return counts


def _class_scores(
    originals_ND: Array, mirrored_ND: Array, labels_N: Array, folds_N: Array
) -> tuple[Array, Array]:
    """Return the out-of-fold scores of images and of their mirror images (N, K).

    The score of a class is NaN where the probe has seen no image of it.
    """
    targets_NK = np.eye(int(labels_N.max()) + 1)[labels_N]
    scores_NK = np.full_like(targets_NK, np.nan)
    mirrored_NK = scores_NK.copy()
    for fold in range(FOLDS):
        held, rest = folds_N == fold, folds_N != fold
        if not held.any() or not rest.any():
            continue
        centre, prior = originals_ND[rest].mean(0), targets_NK[rest].mean(0)
        weights = _ridge(originals_ND[rest] - centre, targets_NK[rest] - prior)
        offset = np.where(prior > 0, prior, np.nan)
        scores_NK[held] = (originals_ND[held] - centre) @ weights + offset
        mirrored_NK[held] = (mirrored_ND[held] - centre) @ weights + offset
    return scores_NK, mirrored_NK


def _guesses(scores_NK: Array) -> Array:
    guesses: Array = np.where(np.isnan(scores_NK), -np.inf, scores_NK).argmax(1)
    return guesses


def _tell_apart(
    differences_ND: Array, labels_N: Array, folds_N: Array, units_N: Array
) -> tuple[Array, float]:
    """Return 1 for each image that a probe of its class tells from its mirror image, else 0.

    The probe is linear in what mirroring changes, so it is right about an image exactly if it is
    right about the mirror image. Where it has nothing to go by, an image counts half; where it has
    seen no other unit of the class, NaN.

    Returns:
        The values (N,), and the p-value of their mean: the share of random choices of units to
        mirror, the actual one among them, that are told apart as well. Of a symmetric class all
        choices are equally likely, whatever the units have in common.
    """
    turns_UR = np.random.default_rng(0).choice((-1.0, 1.0), (int(units_N.max()) + 1, 1 + _FLIPS))
    turns_UR[:, 0] = 1
    told_NR = np.full((len(labels_N), 1 + _FLIPS), np.nan, np.float32)
    for label in np.unique(labels_N):
        for fold in range(FOLDS):
            rest = (labels_N == label) & (folds_N != fold)
            held = (labels_N == label) & (folds_N == fold)
            if rest.any() and held.any():
                counts_NR = _of_images(differences_ND[rest], turns_UR[units_N[rest]])
                alike_NN = differences_ND[held] @ differences_ND[rest].T
                value_NR = alike_NN @ counts_NR * turns_UR[units_N[held]]
                told_NR[held] = np.where(np.abs(value_NR) < _ROUNDING, 0.5, value_NR > 0)
    scored = np.isfinite(told_NR[:, 0])
    weights_N = scored / np.maximum(np.bincount(units_N, scored), 1)[units_N]
    totals_R = weights_N[scored] @ told_NR[scored]
    return told_NR[:, 0].astype(float), float((totals_R >= totals_R[0] - _ROUNDING).mean())


def _compute_kept_skill(
    scores_NK: Array, mirrored_NK: Array, labels_N: Array, folds_N: Array
) -> tuple[Array, Array]:
    """Return by how much an image, and its mirror image, show its class more than others do.

    Both are compared with the images of other classes that the same probe scores.

    Returns:
        The lead of the image (N,), and what its mirror image has above half of it (N,); NaN where
        they are not known.
    """
    own_N = np.arange(len(labels_N)), labels_N
    base_N = np.full(len(labels_N), np.nan)
    for fold in range(FOLDS):
        held = folds_N == fold
        others_NK = ~np.eye(scores_NK.shape[1], dtype=np.bool_)[labels_N[held]]
        sums_K = np.where(others_NK, scores_NK[held], 0).sum(0)
        counts_K = others_NK.sum(0)
        means_K = np.where(counts_K > 0, sums_K / np.maximum(counts_K, 1), np.nan)
        base_N[held] = means_K[labels_N[held]]
    lead_N = scores_NK[own_N] - base_N
    return lead_N, mirrored_NK[own_N] - base_N - _KEPT * lead_N


def _at_least_zero(values_U: Array, classes: int = 1) -> float:
    """Return the p-value of units' mean of at least 0: of a t-test or a sign test, the larger.

    Two units that happen to face the same way agree with each other, so one unit of each class
    tells nothing: it does not count. The sign test knows that few units may all do so by chance.
    """
    from scipy.special import bdtrc

    size = len(values_U) - classes
    if size < 1:
        return 1.0
    below = np.floor((values_U < 0).mean() * size)
    return max(float(bdtrc(below - 1, size, 1 / 2)), _at_most_zero(-values_U, size))


def _at_most_zero(values_U: Array, size: int = 0) -> float:
    """Return the p-value of Student's t-test of a mean of at most 0.

    Args:
        values_U: one value for each unit.
        size: the number of units that count; all unless given.
    """
    from scipy.special import stdtr

    size = size or len(values_U)
    if size < 4:  # noqa: PLR2004 - three values tell no deviation
        return 1.0
    error = values_U.std(ddof=1) / np.sqrt(size) + 1e-9
    return float(1 - stdtr(size - 1, values_U.mean() / error))


NONE = "no label"
"""Stands for images without a label, which may differ from their mirror images, too."""


def with_one_label(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return images with one label each: of a set, the one that the fewest images have so far.

    So an image counts once, and every label has images. A probe of whole sets would find hardly
    any image of the same one. The contents of the images decide, not their order.

    Args:
        rows: usable images.
        task: whether an image has one class, or a set of labels.
    """
    if task == SINGLE_LABEL:
        return rows
    pairs = label_pairs(rows["label"], task)
    own = np.split(pairs.labels, np.searchsorted(pairs.images, np.arange(1, len(rows))))
    counts = [0] * len(pairs.names)
    labels = np.full(len(rows), NONE, dtype=object)
    for row in np.argsort(column_of(rows, FILE).to_numpy(str), kind="stable").tolist():
        if len(own[row]):
            label = min(own[row].tolist(), key=lambda each: (counts[each], each))
            counts[label] += 1
            labels[row] = pairs.names[label]
    return rows.assign(label=labels)
