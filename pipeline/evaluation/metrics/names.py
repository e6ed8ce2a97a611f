"""The metrics of a classifier, with one label or several: titles, meanings and interval methods."""

from __future__ import annotations

from typing import NamedTuple


class MetricName(NamedTuple):
    """Title, meaning and interval method of a metric."""

    title: str
    meaning: str
    """A phrase, without a full stop."""
    higher_is_better: bool
    interval: str
    """Method of its 95% confidence interval."""


_MID_P = "exact mid-P"
_EFFECTIVE = "mid-P with effective sample size"

METRICS: dict[str, MetricName] = {
    "accuracy": MetricName(
        "Accuracy", "share of the images whose most probable class is the true class", True, _MID_P
    ),
    "balanced_accuracy": MetricName(
        "Balanced accuracy", "recall, averaged over the classes", True, _EFFECTIVE
    ),
    "top5_accuracy": MetricName(
        "Top-5 accuracy",
        "share with the true class among the five most probable",
        True,
        _MID_P,
    ),
    "log_loss": MetricName(
        "Log loss",
        "mean negative log-probability of the true class",
        False,
        "gamma; too narrow if rare large errors are not in the sample",
    ),
    "macro_precision": MetricName("Precision", "mean over the classes", True, _EFFECTIVE),
    "macro_recall": MetricName(
        "Recall", "mean over the classes; the same as balanced accuracy", True, _EFFECTIVE
    ),
    "macro_f1": MetricName("F1", "mean over the classes", True, _EFFECTIVE),
    "weighted_precision": MetricName(
        "Precision, weighted", "mean weighted by class size", True, _EFFECTIVE
    ),
    "weighted_recall": MetricName(
        "Recall, weighted", "mean weighted by class size; the same as accuracy", True, _MID_P
    ),
    "weighted_f1": MetricName("F1, weighted", "mean weighted by class size", True, _EFFECTIVE),
    "roc_auc": MetricName(
        "ROC AUC",
        "probability that an image of a class ranks above an image of another class, mean over the "
        "classes",
        True,
        _EFFECTIVE,
    ),
    "pr_auc": MetricName("PR AUC", "average precision, mean over classes", True, _EFFECTIVE),
    "mcc": MetricName(
        "MCC",
        "Matthews correlation coefficient of labels and predictions; 0 is chance level",
        True,
        _EFFECTIVE,
    ),
    "ece": MetricName(
        "ECE",
        "expected calibration error: mean gap between confidence and accuracy in ten bins",
        False,
        "simulation of plausible models",
    ),
}
"""By key, in the order of the report."""


_BOOTSTRAP = "bootstrap of the images, mid-P with effective sample size"
MAIN = "mAP"
"""The metric that models are chosen and compared by."""

MULTI_LABEL_METRICS: dict[str, MetricName] = {
    MAIN: MetricName(
        "mAP",
        "mean average precision: how well a label's images rank above the others, mean over the "
        "labels that some image has",
        True,
        _BOOTSTRAP,
    ),
    "micro_mAP": MetricName(
        "mAP, micro", "average precision over all pairs of image and label", True, _BOOTSTRAP
    ),
    "macro_f1": MetricName(
        "F1", "mean over the labels that some image has, at their thresholds", True, _BOOTSTRAP
    ),
    "micro_f1": MetricName("F1, micro", "over all pairs of image and label", True, _BOOTSTRAP),
    "samples_f1": MetricName(
        "F1, by image",
        "mean over the images; 1 for an image without labels for which none is predicted",
        True,
        _BOOTSTRAP,
    ),
    "macro_precision": MetricName(
        "Precision", "mean over the labels that some image has", True, _BOOTSTRAP
    ),
    "macro_recall": MetricName(
        "Recall", "mean over the labels that some image has", True, _BOOTSTRAP
    ),
    "exact_match": MetricName(
        "Exact match",
        "share of the images whose predicted labels are all right",
        True,
        "exact mid-P",
    ),
    "ranking_loss": MetricName(
        "Ranking loss",
        "share of an image's pairs of a label that it has and one that it has not, in which the "
        "first is no more probable",
        False,
        _BOOTSTRAP,
    ),
    "coverage_error": MetricName(
        "Coverage error",
        "number of the most probable labels that hold all labels of an image, on average",
        False,
        _BOOTSTRAP,
    ),
    "log_loss": MetricName(
        "Log loss",
        "mean binary cross-entropy over all pairs of image and label",
        False,
        "gamma; too narrow if rare large errors are not in the sample",
    ),
    "ece": MetricName(
        "ECE",
        "expected calibration error: mean gap between the probability of a label and the share of "
        "images that have it, in ten bins",
        False,
        "simulation of plausible models",
    ),
}
"""By key, in the order of the report."""

ALL_METRICS: dict[str, MetricName] = {**MULTI_LABEL_METRICS, **METRICS}
"""Of both kinds of classifiers, by key; those of one label come last, and their words first."""
