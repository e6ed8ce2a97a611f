"""Metrics of a classifier, as pure functions on arrays.

Shapes: N samples, K classes; labels and predictions are class indices (N).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics.averages import GroupedAnswers, average_estimates
from patchline.pipeline.evaluation.metrics.calibration import (
    ClassShare,
    TopProbabilities,
    calibration_error_of,
    class_shares,
)
from patchline.pipeline.evaluation.metrics.confusion_matrix import ConfusionCells
from patchline.pipeline.evaluation.metrics.curve_areas import Areas
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    precision_recall_f1,
    rows_of_classes,
    share,
)
from patchline.pipeline.evaluation.metrics.losses import log_loss
from patchline.pipeline.evaluation.metrics.names import METRICS
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]


class ClassMetrics(FrozenModel):
    """The metrics of one class."""

    name: str
    images: int
    predicted: int
    """Number of images predicted as this class."""
    precision: MetricEstimate
    """Share of the predictions of this class that are correct."""
    recall: MetricEstimate
    """Share of this class's images that are predicted correctly."""
    f1: MetricEstimate
    """Harmonic mean of both; n counts the images that are of this class or predicted as it."""
    roc_auc: MetricEstimate | None
    """Probability that an image of this class ranks above an image of another class."""
    pr_auc: MetricEstimate | None
    """Average precision; None if the class, or every other class, has no image."""
    expected: ClassShare | None = None
    """Its share of the images beside its mean probability; None if it was not computed."""
    balanced_recall: float | None = None
    """Recall if the label were the class with the highest probability divided by the class shares,
    as in training with balanced classes; None of any other model, and without images."""


def softmax(logits_NK: Array, temperature: float = 1.0) -> Array:
    """Return probabilities (N, K) in float64."""
    scaled = logits_NK.astype(np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def top_k_hits(scores_NK: Array, labels_N: Array, k: int) -> Array:
    """Return whether the true class of each sample (N) is among the k highest scores."""
    hits_N = np.empty(len(labels_N), bool)
    for rows in row_slices(scores_NK.shape):
        scores, labels = scores_NK[rows], labels_N[rows, None]
        own = np.take_along_axis(scores, labels, axis=1)
        before = (scores == own) & (np.arange(scores.shape[1]) < labels)  # of equal ones, the first
        hits_N[rows] = ((scores > own) | before).sum(axis=1) < k
    return hits_N


def metrics(
    probabilities_NK: Array,
    labels_N: Array,
    areas: Areas | None = None,
    groups: ImageGroups | None = None,
) -> dict[str, MetricEstimate]:
    """Return the metrics of a classifier with their intervals, by the keys of `METRICS`.

    Means over classes cover classes with images. `top5_accuracy` needs more than five classes, and
    `roc_auc` and `pr_auc` need images of two classes; otherwise they are omitted.

    Args:
        probabilities_NK: calibrated probabilities; rows sum to 1.
        labels_N: the true classes.
        areas: the areas under the curves, if already computed.
        groups: the groups that the images form; None if the images are independent.

    Raises:
        DataError: if there are no images.
    """
    n, num_classes = probabilities_NK.shape
    if n == 0:
        raise DataError("There are 0 images to evaluate. Choose a split that has images.")
    predictions_N = probabilities_NK.argmax(axis=1)
    answered = GroupedAnswers(labels_N, predictions_N, groups) if groups else None
    cells = ConfusionCells.of_answers(labels_N, predictions_N, num_classes)
    estimates = average_estimates(cells, answered)
    estimates["accuracy"] = share(predictions_N == labels_N, groups)
    estimates["weighted_recall"] = estimates["accuracy"]
    if num_classes > 5:  # noqa: PLR2004 - with five classes top-5 is always 1
        estimates["top5_accuracy"] = share(top_k_hits(probabilities_NK, labels_N, 5), groups)
    estimates["log_loss"] = log_loss(probabilities_NK, labels_N, groups)
    areas = areas or Areas.of(probabilities_NK, labels_N, groups)
    if areas.roc and areas.precision:
        estimates["roc_auc"], estimates["pr_auc"] = areas.roc.macro, areas.precision.macro
    top = TopProbabilities.of(probabilities_NK, labels_N, groups)
    estimates["ece"] = calibration_error_of(top)
    return {key: estimates[key] for key in METRICS if key in estimates}


def by_class(
    probabilities_NK: Array,
    labels_N: Array,
    names: tuple[str, ...],
    areas: Areas | None = None,
    groups: ImageGroups | None = None,
) -> tuple[ClassMetrics, ...]:
    """Return the metrics of every class, in the order of the K names."""
    predictions_N = probabilities_NK.argmax(axis=1)
    cells = ConfusionCells.of_answers(labels_N, predictions_N, len(names))
    predicted, images = cells.predicted, cells.images
    areas = areas or Areas.of(probabilities_NK, labels_N, groups)
    expected = class_shares(probabilities_NK, labels_N, groups)
    nothing = (None,) * len(names)
    true, said = (rows_of_classes(each, len(names)) for each in (labels_N, predictions_N))
    return tuple(
        ClassMetrics(
            name=name,
            images=int(images[k]),
            predicted=int(predicted[k]),
            precision=precision,
            recall=recall,
            f1=f1,
            roc_auc=roc,
            pr_auc=average_precision,
            expected=expected[k],
        )
        for k, (name, precision, recall, f1, roc, average_precision) in enumerate(
            zip(
                names,
                *precision_recall_f1(true, said, groups),
                areas.roc.by_class if areas.roc else nothing,
                areas.precision.by_class if areas.precision else nothing,
                strict=True,
            )
        )
    )
