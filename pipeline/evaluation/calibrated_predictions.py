"""Turn the logits of a run into calibrated probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.grouped_images import image_groups
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, fit_temperature
from patchline.pipeline.evaluation.predictions import stacked, with_probabilities


def calibrated(
    table: pd.DataFrame,
    classes: tuple[str, ...],
    fit: TemperatureFit | None = None,
    class_images: Sequence[int] = (),
) -> tuple[pd.DataFrame, TemperatureFit]:
    """Fit the calibration on all images but the test split; return the predictions and it.

    Args:
        table: rows of the manifest with `logits`.
        classes: the model's classes, in the order of its outputs.
        fit: the calibration, if it needs no fit.
        class_images: number of training images of each class, if the training balanced them.

    Raises:
        RunError: if the model's outputs are not finite numbers.
    """
    fit = fit or _fitted(table[table["split"] != "test"], classes, class_images)
    probabilities_NK = np.empty((len(table), len(classes)), np.float32)
    for rows in row_slices(probabilities_NK.shape):
        probabilities_NK[rows] = softmax(fit.logits(stacked(table["logits"].iloc[rows])))
    return with_probabilities(table, classes, probabilities_NK), fit


def _fitted(
    table: pd.DataFrame, classes: tuple[str, ...], class_images: Sequence[int]
) -> TemperatureFit:
    index = {name: number for number, name in enumerate(classes)}
    labels_N = table["label"].map(index).to_numpy(np.int64)
    chosen = list(table["logits"])
    logits_NK = np.stack(chosen) if chosen else np.empty((0, len(classes)), np.float32)
    groups = image_groups(table)
    return fit_temperature(logits_NK, labels_N, groups=groups, class_images=class_images)
