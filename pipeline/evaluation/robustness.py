"""Accuracy or mAP on corrupted test images, paired with that on the same images as they are.

Corruptions do not change the labels, so that the mAP of all versions can be compared. Its intervals
are those of one bootstrap over the images for all versions, as in the paired test: percentiles, or
with groups of images, which are drawn together, those of Student's t.

Shapes: N images, K classes or labels, V corrupted versions of each image, R draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from patchline.pipeline.evaluation.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
)
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    mean_of_repeats,
    share,
)
from patchline.pipeline.evaluation.metrics.mean_average_precision import find_ranked_labels
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    label_set_map,
    p_value_of,
)
from patchline.pipeline.evaluation.metrics.multi_label.resampling import (
    Sample,
    compute_drawn_map,
    draws_for,
    rankings_of,
)
from patchline.pipeline.evaluation.metrics.paired_test import (
    PairedDifference,
    compute_paired_difference,
)
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
Scores = Callable[[Array], Array]
"""Maps uint8 images (B, H, W, C) to scores (B, K), whose largest is the prediction."""
_VERSIONS = tuple(product(CORRUPTIONS, SEVERITIES))
VERSIONS = len(_VERSIONS)
"""Corrupted versions of each image."""
_BATCH = 64


class CorruptedAccuracy(FrozenModel):
    """The accuracy under one corruption of one severity."""

    corruption: str
    severity: int
    accuracy: MetricEstimate
    difference: PairedDifference
    """Difference from the accuracy on the same images as they are."""


class CorruptedMap(FrozenModel):
    """The mAP under one corruption of one severity."""

    corruption: str
    severity: int
    mean_average_precision: MetricEstimate
    difference: MetricEstimate
    """Difference from the mAP of the same images as they are."""
    p_value: float
    """Two-sided p-value of the paired bootstrap."""


Cell = TypeVar("Cell", CorruptedAccuracy, CorruptedMap)


class MeasuredRobustness(FrozenModel, Generic[Cell]):
    """The main metric on a sample of test images under every corruption and severity."""

    KEY: ClassVar[str]
    """Beginning of the metrics' names."""

    images: int
    clean: MetricEstimate
    """The metric on the sample as it is."""
    mean: MetricEstimate
    """Mean over all corruptions and severities; interval over the images, or their groups where
    some form groups."""
    loss: MetricEstimate
    """The mean minus the metric of the images as they are."""
    by_corruption: dict[str, MetricEstimate]
    """Mean over the severities of each corruption; interval as of `mean`."""
    cells: tuple[Cell, ...]

    @property
    def metrics(self) -> dict[str, MetricEstimate]:
        """Metrics by name, without the split."""
        each = {f"{self.KEY}/{name}": value for name, value in self.by_corruption.items()}
        return {self.KEY: self.mean, f"{self.KEY}_loss": self.loss, **each}

    def severities_of(self, corruption: str) -> tuple[Cell, ...]:
        """Return the results of one corruption, the mildest first."""
        return tuple(cell for cell in self.cells if cell.corruption == corruption)


class Robustness(MeasuredRobustness[CorruptedAccuracy]):
    """That of the accuracy."""

    KEY = "corrupted_accuracy"


class LabelSetRobustness(MeasuredRobustness[CorruptedMap]):
    """That of the mAP."""

    KEY = "corrupted_mAP"


AnyRobustness = Robustness | LabelSetRobustness


def sample_rows(count: int, most: int, seed: int) -> Array:
    """Return which of some images are corrupted: at most so many, in order."""
    random = np.random.default_rng([seed, 1903])
    return np.sort(random.permutation(count)[:most])


def measure_robustness(
    scores: Scores,
    images_NHWC: Array,
    labels_N: Array,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    groups: ImageGroups | None = None,
) -> Robustness:
    """Predict every image as it is and in each corrupted version.

    Args:
        scores: the model, as a function that returns the scores of images.
        images_NHWC: the images as the model takes them, uint8.
        labels_N: number of the true class of each image.
        seed: the seed of the corruptions.
        on_progress: called with the number of predicted images, and of all.
        groups: the groups that the images form; None if the images are independent.
    """
    hits_VN = np.stack(
        [
            scores_NK.argmax(axis=1) == labels_N
            for scores_NK in scores_of_versions(scores, images_NHWC, seed, on_progress)
        ]
    ).astype(np.float64)
    clean_N = hits_VN[0]
    cells = [
        CorruptedAccuracy(
            corruption=name,
            severity=severity,
            accuracy=share(right_N, groups),
            difference=compute_paired_difference(clean_N, right_N, groups),
        )
        for (name, severity), right_N in zip(_VERSIONS, hits_VN[1:], strict=True)
    ]

    def estimate(_value: float, values_N: Array, least: float = 0.0) -> MetricEstimate:
        return _mean(values_N, (least, 1.0), groups)

    values = _average(hits_VN.mean(axis=1), hits_VN, estimate)
    return Robustness(
        images=len(images_NHWC), clean=share(clean_N, groups), cells=tuple(cells), **values
    )


def _average(
    values_V: Array, samples_VS: Array, estimate: Callable[..., MetricEstimate]
) -> dict[str, Any]:
    """Return `mean`, `loss` and `by_corruption` of a metric.

    Args:
        values_V: the metric of the images as they are, and of each corrupted version.
        samples_VS: what its uncertainty follows from: the same of each image, or of each draw.
        estimate: returns a metric with its interval, given its value, its samples, and the smallest
            possible value if that is not 0.
    """
    shape = len(CORRUPTIONS), len(SEVERITIES), -1
    of_names, samples = (each[1:].reshape(shape).mean(axis=1) for each in (values_V, samples_VS))
    value, samples_S = float(values_V[1:].mean()), samples_VS[1:].mean(axis=0)
    return {
        "mean": estimate(value, samples_S),
        "loss": estimate(value - float(values_V[0]), samples_S - samples_VS[0], -1.0),
        "by_corruption": {
            name: estimate(float(of_name.mean()), samples_of_name)
            for name, of_name, samples_of_name in zip(CORRUPTIONS, of_names, samples, strict=True)
        },
    }


def scores_of_versions(
    scores: Scores,
    images_NHWC: Array,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Array]:
    """Yield the scores (N, K) of the images as they are, then of each corruption and severity.

    Args:
        scores: the model, as a function that returns the scores of images.
        images_NHWC: the images as the model takes them, uint8.
        seed: the seed of the corruptions.
        on_progress: called with the number of predicted images, and of all.
    """
    count = len(images_NHWC)
    yield _score(scores, images_NHWC)
    for version, (name, severity) in enumerate(_VERSIONS, 2):
        versions = np.stack([corrupt(each, name, severity, seed) for each in images_NHWC])
        yield _score(scores, versions)
        if on_progress:
            on_progress(count * version, count * (VERSIONS + 1))


def _score(scores: Scores, images_NHWC: Array) -> Array:
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


def label_set_robustness(
    scores: Scores,
    images_NHWC: Array,
    labels_NK: Array,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    groups: ImageGroups | None = None,
) -> LabelSetRobustness | None:
    """Predict every image as it is and in each corrupted version.

    Args:
        scores: the model, as a function that returns the scores of images.
        images_NHWC: the images as the model takes them, uint8.
        labels_NK: 1 where an image has a label, else 0.
        seed: the seed of the corruptions and of the draws.
        on_progress: called with the number of predicted images, and of all.
        groups: the groups that the images form; None if the images are independent.

    Returns:
        None if no label is on some of the images and not on others, so that mAP is unknown.
    """
    count, num_labels = labels_NK.shape
    if not find_ranked_labels(labels_NK).any():
        return None
    versions = list(scores_of_versions(scores, images_NHWC, seed, on_progress))
    rankings = [rankings_of(version_NK, labels_NK) for version_NK in versions]
    sample = Sample(groups, draws_for(count, num_labels * len(versions)), seed)
    drawn_VR = np.concatenate(
        [
            np.stack([compute_drawn_map(version, counts_NR) for version in rankings])
            for counts_NR in sample.drawn(count)
        ],
        axis=1,
    )
    values_V = np.array([np.mean([each.average_precision for each in row]) for row in rankings])
    clean, clean_R = float(values_V[0]), drawn_VR[0]

    def estimate(value: float, drawn_R: Array, least: float = 0.0) -> MetricEstimate:
        known, low, high = _without_unknown(drawn_R), value, value
        if len(known):
            low, high = sample.interval(value, known, (least, 1.0))
        return MetricEstimate(value=value, low=low, high=high, n=count)

    cells = []
    for (name, severity), value, drawn_R in zip(
        _VERSIONS, values_V[1:].tolist(), drawn_VR[1:], strict=True
    ):
        changes_R = drawn_R - clean_R
        cells.append(
            CorruptedMap(
                corruption=name,
                severity=severity,
                mean_average_precision=estimate(value, drawn_R),
                difference=estimate(value - clean, changes_R, -1.0),
                p_value=p_value_of(value - clean, _without_unknown(changes_R), sample),
            )
        )

    return LabelSetRobustness(
        images=count,
        clean=label_set_map(versions[0], labels_NK, groups=groups, seed=seed),
        cells=tuple(cells),
        **_average(values_V, drawn_VR, estimate),
    )


def _without_unknown(drawn_R: Array) -> Array:
    known: Array = drawn_R[~np.isnan(drawn_R)]
    return known
