"""Turn the logits of a run into calibrated probabilities."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.evaluation.predictions import stacked, with_probabilities
from pipeline.metrics.calibration import fit_temperature
from pipeline.metrics.classification import softmax
from pipeline.metrics.row_pieces import row_slices


def calibrated(table: pd.DataFrame, classes: tuple[str, ...]) -> tuple[pd.DataFrame, float]:
    """Fit the temperature on all images but the test split; return the table of predictions and it.

    Args:
        table: rows of the manifest with `logits`; without other images than test images, the
            temperature is 1.
        classes: the model's classes, in the order of its outputs.
    """
    validation = (table["split"] != "test").to_numpy()
    labels = table.loc[validation, "label"].map({name: k for k, name in enumerate(classes)})
    chosen = list(table.loc[validation, "logits"])
    temperature = fit_temperature(np.stack(chosen), labels.to_numpy(np.int64)) if chosen else 1.0
    probabilities_NK = np.empty((len(table), len(classes)), np.float32)
    for rows in row_slices(probabilities_NK.shape):
        probabilities_NK[rows] = softmax(stacked(table["logits"].iloc[rows]), temperature)
    return with_probabilities(table, classes, probabilities_NK), temperature
