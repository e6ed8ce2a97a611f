"""What turns a multi-label model's logits into labels: its calibration and its thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    fit_label_calibration,
)
from patchline.pipeline.evaluation.metrics.label_thresholds import (
    LabelThresholds,
    fit_label_thresholds,
)
from patchline.pipeline.evaluation.metrics.mean_average_precision import ranked_labels
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import label_set_map
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import ThresholdedScores
from patchline.pipeline.evaluation.predictions import (
    Predictions,
    image_groups,
    label_matrix,
    stacked,
)
from patchline.pipeline.training.train_result import EnsembleResult, TrainResult

Array = np.ndarray[Any, Any]


class LabelFit(NamedTuple):
    """The fields of a model's description that turn logits into labels."""

    label_calibration: LabelCalibration
    thresholds: LabelThresholds


def fitted(
    held_out: pd.DataFrame, classes: tuple[str, ...], _class_images: Sequence[int]
) -> LabelFit:
    """Fit calibration and thresholds.

    Args:
        held_out: rows of the manifest with `logits`, by models not trained on them.
        classes: the model's labels, in the order of its outputs.

    Raises:
        RunError: if the model's outputs are not finite numbers.
        DataError: if a label is not one of the model.
    """
    if held_out.empty:
        count = len(classes)
        return LabelFit(LabelCalibration.none(count), LabelThresholds.neutral(count))
    labels_NK = label_matrix(list(held_out["label"]), classes)
    logits_NK = stacked(held_out["logits"])
    calibration = fit_label_calibration(logits_NK, labels_NK)
    probabilities_NK = calibration.probabilities(logits_NK)
    return LabelFit(calibration, fit_label_thresholds(probabilities_NK, labels_NK))


def by_members(ensemble: EnsembleResult) -> LabelFit:
    """Return what the members of an ensemble were fitted to."""
    calibration = LabelCalibration.by_member(ensemble.label_calibrations)
    neutral = LabelThresholds.neutral(len(calibration.scales))
    return LabelFit(calibration, ensemble.thresholds or neutral)


def recorded(package: Any) -> LabelFit:
    """Return what a `PackagedModel` holds."""
    calibration = LabelCalibration.none(len(package.classes))
    if package.label_calibration:
        calibration = LabelCalibration.model_validate(package.label_calibration)
    return LabelFit(calibration, LabelThresholds.model_validate(package.thresholds))


def answers(package: Any, probabilities_NK: Array, classes: Sequence[str]) -> ThresholdedScores:
    """Return a package's probabilities, and the labels at or above its own thresholds."""
    own = dict(zip(package.classes, np.array(package.thresholds_K).tolist(), strict=True))
    thresholds_K = np.array([own[label] for label in classes])
    exact_NK = probabilities_NK.astype(np.float64)
    return ThresholdedScores(exact_NK, (exact_NK >= thresholds_K).astype(np.uint8))


def validated(_trained: TrainResult, table: pd.DataFrame, classes: tuple[str, ...]) -> str:
    """Return the mAP on the validation images in words, given all predictions."""
    own = Predictions.of_label_sets(table[table["split"] == "validation"], classes)
    if not ranked_labels(own.labels).any():
        return "validation mAP unknown: no label is on some validation images and not on others"
    found = label_set_map(own.probabilities_NK, own.labels, groups=image_groups(own.table))
    return (
        f"validation mAP {found.value:.1%} of {found.n:,} images in float32 (95% interval "
        f"{found.low:.1%} to {found.high:.1%})"
    )
