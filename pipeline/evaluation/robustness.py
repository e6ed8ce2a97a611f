"""Accuracy on corrupted test images, paired with that on the same images as they are.

Shapes: N images, K classes, V corrupted versions of each image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from patchline.pipeline.evaluation.corruptions.catalogue import (
    CORRUPTIONS,
    SEVERITIES,
    corrupted,
)
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups, share
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, mean_of_repeats
from patchline.pipeline.evaluation.metrics.paired_test import PairedDifference, paired_difference
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
Scores = Callable[[Array], Array]
"""Maps uint8 images (B, H, W, C) to scores (B, K), whose largest is the prediction."""
VERSIONS = len(CORRUPTIONS) * len(SEVERITIES)
"""Corrupted versions of each image."""
_BATCH = 64


class CorruptionJob(FrozenModel):
    """Test images to corrupt and predict."""

    images: int
    """At most so many."""
    seed: int
    """Draws the images and the corruptions."""
    classes: tuple[str, ...]


class CorruptedAccuracy(FrozenModel):
    """The accuracy under one corruption of one severity."""

    corruption: str
    severity: int
    accuracy: MetricEstimate
    difference: PairedDifference
    """From the accuracy on the same images as they are."""


class Robustness(FrozenModel):
    """The accuracy on a sample of test images under every corruption and severity."""

    images: int
    clean: MetricEstimate
    """Accuracy on the sample as it is."""
    mean: MetricEstimate
    """Mean accuracy over all corruptions and severities; interval over the images, or their groups
    where some form groups."""
    loss: MetricEstimate
    """Mean over the images of the accuracy on corrupted versions, minus that as it is."""
    by_corruption: dict[str, MetricEstimate]
    """Mean accuracy over the severities of each corruption; interval as of `mean`."""
    cells: tuple[CorruptedAccuracy, ...]

    @property
    def metrics(self) -> dict[str, MetricEstimate]:
        """Metrics by name, without the split."""
        each = {f"corrupted_accuracy/{name}": value for name, value in self.by_corruption.items()}
        return {"corrupted_accuracy": self.mean, "corrupted_accuracy_loss": self.loss, **each}

    def severities_of(self, corruption: str) -> tuple[CorruptedAccuracy, ...]:
        """Return the results of one corruption, the mildest first."""
        return tuple(cell for cell in self.cells if cell.corruption == corruption)


def sampled_rows(count: int, most: int, seed: int) -> Array:
    """Return which of some images are corrupted: at most so many, in order."""
    random = np.random.default_rng([seed, 1903])
    return np.sort(random.permutation(count)[:most])


def measured_robustness(
    scores: Scores,
    images_NHWC: Array,
    labels_N: Array,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    groups: ImageGroups | None = None,
) -> Robustness:
    """Predict every image as it is and in each corrupted version.

    Args:
        scores: the model.
        images_NHWC: uint8, as the model takes them.
        labels_N: number of the true class of each image.
        seed: of the corruptions.
        on_progress: called with the number of predicted images, and of all.
        groups: of the images; None if these are independent.
    """
    count = len(images_NHWC)
    clean_N, *right_VN = (
        scores_NK.argmax(axis=1) == labels_N
        for scores_NK in scores_of_versions(scores, images_NHWC, seed, on_progress)
    )
    names = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
    cells = [
        CorruptedAccuracy(
            corruption=name,
            severity=severity,
            accuracy=share(right_N, groups),
            difference=paired_difference(clean_N, right_N, groups),
        )
        for (name, severity), right_N in zip(names, right_VN, strict=True)
    ]
    shares_VN = np.stack(right_VN).astype(np.float64)
    by_name = shares_VN.reshape(len(CORRUPTIONS), len(SEVERITIES), count).mean(axis=1)
    return Robustness(
        images=count,
        clean=share(clean_N, groups),
        mean=_mean(shares_VN.mean(axis=0), (0.0, 1.0), groups),
        loss=_mean(shares_VN.mean(axis=0) - clean_N, (-1.0, 1.0), groups),
        by_corruption={
            name: _mean(shares_N, (0.0, 1.0), groups)
            for name, shares_N in zip(CORRUPTIONS, by_name, strict=True)
        },
        cells=tuple(cells),
    )


def scores_of_versions(
    scores: Scores,
    images_NHWC: Array,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Array]:
    """Yield the scores (N, K) of the images as they are, then of each corruption and severity.

    Args:
        scores: the model.
        images_NHWC: uint8, as the model takes them.
        seed: of the corruptions.
        on_progress: called with the number of predicted images, and of all.
    """
    count = len(images_NHWC)
    yield _scored(scores, images_NHWC)
    for version, (name, severity) in enumerate(product(CORRUPTIONS, SEVERITIES), 2):
        versions = np.stack([corrupted(each, name, severity, seed) for each in images_NHWC])
        yield _scored(scores, versions)
        if on_progress:
            on_progress(count * version, count * (VERSIONS + 1))


def _scored(scores: Scores, images_NHWC: Array) -> Array:
    parts = [
        scores(images_NHWC[start : start + _BATCH]) for start in range(0, len(images_NHWC), _BATCH)
    ]
    return np.concatenate(parts)


def _mean(values_N: Array, ends: tuple[float, float], groups: ImageGroups | None) -> MetricEstimate:
    """Return a mean over images with its t interval; that over their groups, if it is wider."""
    alone = mean_of_repeats(values_N.tolist(), ends)
    if groups is None:
        return alone
    whole = mean_of_repeats(groups.linearised(values_N).tolist(), ends)
    low, high = min(alone.low, whole.low), max(alone.high, whole.high)
    return alone.model_copy(update={"low": low, "high": high})
