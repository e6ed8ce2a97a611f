"""Figures of a classifier, as pure functions on arrays.

Shapes: N samples, K classes; labels and predictions are class indices (N).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.metrics.intervals import MetricEstimate, bootstrap, proportion
from pipeline.section import Section

Array = np.ndarray[Any, Any]


class ClassFigures(Section):
    """What the model does on one class."""

    name: str
    images: int
    precision: MetricEstimate
    """Of the images called this class, the share that is."""
    recall: MetricEstimate
    """Of the images of this class, the share that was recognised."""
    f1: float
    """Harmonic mean of both."""


def softmax(logits_NK: Array, temperature: float = 1.0) -> Array:
    """Return probabilities (N, K) in float64."""
    scaled = logits_NK.astype(np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def confusion_matrix(labels_N: Array, predictions_N: Array, num_classes: int) -> Array:
    """Return counts (K, K): rows are true classes, columns predicted ones."""
    counts = np.bincount(labels_N * num_classes + predictions_N, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def precision_recall_f1(confusion_KK: Array) -> tuple[Array, Array, Array]:
    """Return three arrays (K); a class that was never predicted has precision 0."""
    hits = np.diag(confusion_KK).astype(float)
    precision = hits / np.maximum(confusion_KK.sum(axis=0), 1)
    recall = hits / np.maximum(confusion_KK.sum(axis=1), 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return precision, recall, f1


def top_k_hits(logits_NK: Array, labels_N: Array, k: int) -> int:
    """Return how often the true class is among the k most probable ones."""
    top = np.argsort(-logits_NK, axis=1, kind="stable")[:, :k]
    return int((top == labels_N[:, None]).any(axis=1).sum())


def log_losses(probabilities_NK: Array, labels_N: Array) -> Array:
    """Return the negative log-probability of the true class, by sample (N)."""
    true = probabilities_NK[np.arange(len(labels_N)), labels_N]
    return -np.log(np.maximum(true, 1e-15))


def metrics(logits_NK: Array, labels_N: Array, temperature: float) -> dict[str, MetricEstimate]:
    """Return the figures of a classifier with their intervals.

    Proportions have Wilson's interval, everything else the percentile bootstrap.
    """
    n, num_classes = logits_NK.shape
    predictions_N = logits_NK.argmax(axis=1)
    losses_N = log_losses(softmax(logits_NK, temperature), labels_N)
    codes_N = labels_N * num_classes + predictions_N

    def macro(which: int, sample: Array) -> float:
        counts = np.bincount(codes_N[sample], minlength=num_classes**2)
        confusion = counts.reshape(num_classes, num_classes)
        present = confusion.sum(axis=1) > 0  # a resample may miss a class
        return float(precision_recall_f1(confusion)[which][present].mean())

    estimates = {"accuracy": proportion(int((predictions_N == labels_N).sum()), n)}
    if num_classes > 5:  # noqa: PLR2004 - with five classes top-5 is always 1
        estimates["top5_accuracy"] = proportion(top_k_hits(logits_NK, labels_N, 5), n)
    for which, name in enumerate(("macro_precision", "macro_recall", "macro_f1")):
        estimates[name] = bootstrap(lambda sample, which=which: macro(which, sample), n)  # type: ignore[misc]  # mypy does not infer a lambda with a default
    estimates["log_loss"] = bootstrap(lambda sample: float(losses_N[sample].mean()), n)
    return estimates


def by_class(confusion_KK: Array, names: tuple[str, ...]) -> tuple[ClassFigures, ...]:
    """Return the figures of every class."""
    f1 = precision_recall_f1(confusion_KK)[2]
    predicted, images = confusion_KK.sum(axis=0), confusion_KK.sum(axis=1)
    return tuple(
        ClassFigures(
            name=name,
            images=int(images[k]),
            precision=proportion(int(confusion_KK[k, k]), int(predicted[k])),
            recall=proportion(int(confusion_KK[k, k]), int(images[k])),
            f1=float(f1[k]),
        )
        for k, name in enumerate(names)
    )


def fit_temperature(logits_NK: Array, labels_N: Array) -> float:
    """Return the temperature with the smallest log loss, between 0.05 and 20 (arXiv 1706.04599)."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        probabilities = softmax(logits_NK, float(np.exp(log_temperature)))
        return float(log_losses(probabilities, labels_N).mean())

    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))
