"""What evaluating a model with one label for each image needs beside its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.answer_rules_fit import ReferenceFeatures
from patchline.pipeline.evaluation.answers_report import PredictedImages, checked_answers
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import (
    MetricEstimate,
    proportion,
    with_effective_size,
)
from patchline.pipeline.evaluation.metrics.paired_test import PairedDifference, paired_difference
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, fit_temperature
from patchline.pipeline.evaluation.predictions import (
    Predictions,
    class_numbers,
    image_groups,
)
from patchline.pipeline.models.model_description import AnswerRules
from patchline.pipeline.training.train_result import TrainResult

Array = np.ndarray[Any, Any]


def fitted(
    held_out: pd.DataFrame, classes: tuple[str, ...], class_images: Sequence[int]
) -> TemperatureFit:
    """Fit the temperature.

    Args:
        held_out: rows of the manifest with `logits`, by models not trained on them.
        classes: the model's classes, in the order of its outputs.
        class_images: number of training images of each class, if the training balanced them.

    Raises:
        RunError: if the model's outputs are not finite numbers.
    """
    labels_N, chosen = class_numbers(list(held_out["label"]), classes), list(held_out["logits"])
    logits_NK = np.stack(chosen) if chosen else np.empty((0, len(classes)), np.float32)
    groups = image_groups(held_out)
    return fit_temperature(logits_NK, labels_N, groups=groups, class_images=class_images)


def paired(
    labels_N: Array, a_NK: Array, b_NK: Array, groups: ImageGroups | None
) -> PairedDifference:
    """Compare the accuracy of two classifiers by their scores."""
    a_right_N, b_right_N = (each.argmax(axis=1) == labels_N for each in (a_NK, b_NK))
    return paired_difference(a_right_N, b_right_N, groups)


def remedy(common: int) -> str:
    """Return what to do if the data and the model have so many classes in common, not all."""
    if common == 0:
        return "Rename the folders to the model's class names."
    return f"Add --common-classes to evaluate on the {common} in common, or rename the folders."


def checked_sets(
    rules: AnswerRules,
    tested: Predictions,
    images: PredictedImages,
    reference: ReferenceFeatures | None,
    config: EvaluationConfig,
) -> dict[str, Any]:
    """Return how often sets hold the true class and images are warned of, as a report has it."""
    measured = images.of(tested, reference, rules.far_split)
    return {"answers": checked_answers(rules, tested, measured, config)}


def _interval(accuracy: float, images: int, validated: pd.DataFrame) -> MetricEstimate:
    """Return a validation accuracy on some images with its interval.

    Args:
        accuracy: of the training run.
        images: that it is computed on.
        validated: predictions of the whole split; they tell how much the images of a group agree.
    """
    groups = image_groups(validated)
    if groups is None:
        return proportion(round(accuracy * images), images)
    right_N = (validated["predicted"] == validated["label"]).to_numpy(np.float64)
    effective_n = images / groups.inflation(right_N)
    return with_effective_size(accuracy, n=images, effective_n=effective_n)


def validated(trained: TrainResult, table: pd.DataFrame, _classes: tuple[str, ...]) -> str:
    """Return the validation accuracy with its interval; if it is not float32, that in float32 too.

    Args:
        trained: has the accuracy of the training run.
        table: all predictions, in float32.
    """
    accuracy = trained.best_validation_accuracy or 0.0
    words = f"validation accuracy {accuracy:.1%}"
    of_best = [each for each in trained.history if each.step == trained.best_step]
    images = of_best[-1].validation_images if of_best else 0
    if images:
        interval = _interval(accuracy, images, table[table["split"] == "validation"])
        words += f" of {images:,} images (95% interval {interval.low:.1%} to {interval.high:.1%})"
    if trained.precision != "float32":
        words += f", {'with features ' if trained.probe else ''}in {trained.precision}"
        # After a refit, the predictions are those of other weights.
        validated = table[table["split"] == "validation"]
        if trained.refit is None and len(validated):
            exact = float((validated["predicted"] == validated["label"]).mean())
            words += f"; {exact:.1%} of {len(validated):,} in float32, as registered"
    return words
