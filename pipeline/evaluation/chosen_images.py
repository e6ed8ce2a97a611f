"""The test images of a run whose predictions are explained on a page of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchline.pipeline.evaluation.galleries import (
    false_positives,
    true_positives,
)
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.frozen_model import FrozenModel

if TYPE_CHECKING:
    import pandas as pd

EXPLANATIONS = "explanations"
"""Folder of the pages, beside the report."""
TITLES = {
    "surest_right": "Most confident correct prediction",
    "worst_wrong": "Most confident error",
}
"""What the pages explain, by their name without `.html`."""


class ChosenImage(FrozenModel):
    """A test image whose prediction is explained."""

    page: str
    """Name of the page, without `.html`."""
    path: str
    label: str
    """Its class; of a set of labels, the one that is explained."""
    row: int
    """Number of the image in the prepared store."""


def chosen_images(table: pd.DataFrame, _classes: tuple[str, ...]) -> tuple[ChosenImage, ...]:
    """Return the right test image with the highest probability, and the wrong one."""
    test = table[table["split"] == "test"]
    right = test["label"] == test["predicted"]
    chosen = []
    for page, rows in zip(TITLES, (test[right], test[~right]), strict=True):
        if len(rows):
            surest = rows.sort_values("probability").iloc[-1]
            chosen.append(_chosen(page, surest, str(surest["label"])))
    return tuple(chosen)


def chosen_labels(table: pd.DataFrame, labels: tuple[str, ...]) -> tuple[ChosenImage, ...]:
    """Return the test images of the most probable label that is right, and of one that is not."""
    predictions = Predictions.of_label_sets(table[table["split"] == "test"], labels)
    chosen = []
    pairs = true_positives(predictions), false_positives(predictions)
    for page, found in zip(TITLES, pairs, strict=True):
        if len(found.images_M):
            row = predictions.table.iloc[int(found.images_M[0])]
            chosen.append(_chosen(page, row, labels[int(found.labels_M[0])]))
    return tuple(chosen)


def _chosen(page: str, row: pd.Series[Any], label: str) -> ChosenImage:
    return ChosenImage(page=page, path=str(row["path"]), label=label, row=int(row["row"]))
