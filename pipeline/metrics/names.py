"""The figures of a classifier: their names, what they mean, and where their intervals come from."""

from __future__ import annotations

from typing import NamedTuple


class MetricName(NamedTuple):
    """How a figure is called and read."""

    title: str
    meaning: str
    """Part of a sentence."""
    higher_is_better: bool
    interval: str
    """How its 95 % interval is made."""


_MID_P = "exact mid-P"
_EFFECTIVE = "mid-P with an effective number of images"

METRICS: dict[str, MetricName] = {
    "accuracy": MetricName(
        "Accuracy", "share of the images whose most probable class is right", True, _MID_P
    ),
    "balanced_accuracy": MetricName(
        "Balanced accuracy", "recall, averaged over the classes", True, _EFFECTIVE
    ),
    "top5_accuracy": MetricName(
        "Top-5 accuracy", "share whose class is among the five most probable", True, _MID_P
    ),
    "log_loss": MetricName(
        "Log loss",
        "mean surprise at the true class",
        False,
        "gamma; too narrow where errors that matter are still unseen",
    ),
    "macro_precision": MetricName("Precision", "mean over the classes", True, _EFFECTIVE),
    "macro_recall": MetricName(
        "Recall", "mean over the classes; the same as balanced accuracy", True, _EFFECTIVE
    ),
    "macro_f1": MetricName("F1", "mean over the classes", True, _EFFECTIVE),
    "weighted_precision": MetricName(
        "Precision, weighted", "mean over the images' classes", True, _EFFECTIVE
    ),
    "weighted_recall": MetricName(
        "Recall, weighted", "mean over the images' classes; the same as accuracy", True, _MID_P
    ),
    "weighted_f1": MetricName("F1, weighted", "mean over the images' classes", True, _EFFECTIVE),
    "roc_auc": MetricName(
        "ROC AUC",
        "how often an image of a class gets a higher probability for it than another image, mean "
        "over the classes",
        True,
        "score type",
    ),
    "pr_auc": MetricName("PR AUC", "average precision, mean over the classes", True, "score type"),
    "mcc": MetricName(
        "MCC", "Matthews correlation of labels and predictions, 0 is chance", True, _EFFECTIVE
    ),
    "ece": MetricName(
        "ECE",
        "expected calibration error: mean distance of probability and accuracy in ten bins",
        False,
        "simulated models that could have given it",
    ),
}
"""By key, in the order of the report."""
