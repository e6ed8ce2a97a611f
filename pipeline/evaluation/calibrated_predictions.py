"""Turn the logits of a run into calibrated probabilities."""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.predictions import stacked, with_probabilities
from patchline.pipeline.metrics.classification import softmax
from patchline.pipeline.metrics.row_pieces import row_slices
from patchline.pipeline.metrics.temperature import TemperatureFit, fit_temperature


def calibrated(
    table: pd.DataFrame, classes: tuple[str, ...], temperature: TemperatureFit | None = None
) -> tuple[pd.DataFrame, TemperatureFit]:
    """Fit the temperature on all images but the test split; return the table of predictions and it.

    Args:
        table: rows of the manifest with `logits`.
        classes: the model's classes, in the order of its outputs.
        temperature: the temperature, if it needs no fit.

    Raises:
        RunError: if the model's outputs are not finite numbers.
    """
    fit = temperature or _fitted(table[table["split"] != "test"], classes)
    probabilities_NK = np.empty((len(table), len(classes)), np.float32)
    for rows in row_slices(probabilities_NK.shape):
        probabilities_NK[rows] = softmax(stacked(table["logits"].iloc[rows]), fit.temperature)
    return with_probabilities(table, classes, probabilities_NK), fit


def _fitted(table: pd.DataFrame, classes: tuple[str, ...]) -> TemperatureFit:
    index = {name: number for number, name in enumerate(classes)}
    labels_N = table["label"].map(index).to_numpy(np.int64)
    chosen = list(table["logits"])
    logits_NK = np.stack(chosen) if chosen else np.empty((0, len(classes)), np.float32)
    return fit_temperature(logits_NK, labels_N)
