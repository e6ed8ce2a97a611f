"""The metrics of a multi-label classifier: their titles, meanings and interval methods."""

from __future__ import annotations

from patchline.pipeline.evaluation.metrics.names import METRICS, MetricName

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
