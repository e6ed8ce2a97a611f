"""The test images of a run whose predictions are explained on a page of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchline.pipeline.evaluation.galleries import (
    false_positives,
    true_positives,
)
from patchline.pipeline.evaluation.predictions import LabelSetPredictions
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


def choose_images(
    table: pd.DataFrame, labels: tuple[str, ...] | None = None
) -> tuple[ChosenImage, ...]:
    """Return the right test image with the highest probability, and the wrong one.

    Args:
        table: all predictions.
        labels: of a model that gives sets of labels: the most probable label that is right, and the
            most probable one that is not, are explained on their images.
    """
    test = table[table["split"] == "test"]
    if labels is not None:
        return _chosen_labels(LabelSetPredictions.of(test, labels), labels)
    right = test["label"] == test["predicted"]
    chosen = []
    for page, rows in zip(TITLES, (test[right], test[~right]), strict=True):
        if len(rows):
            surest = rows.sort_values("probability").iloc[-1]
            chosen.append(_chosen(page, surest, str(surest["label"])))
    return tuple(chosen)


def _chosen_labels(
    predictions: LabelSetPredictions, labels: tuple[str, ...]
) -> tuple[ChosenImage, ...]:
    chosen = []
    pairs = true_positives(predictions), false_positives(predictions)
    for page, found in zip(TITLES, pairs, strict=True):
        if len(found.images_M):
            row = predictions.table.iloc[int(found.images_M[0])]
            chosen.append(_chosen(page, row, labels[int(found.labels_M[0])]))
    return tuple(chosen)


def _chosen(page: str, row: pd.Series[Any], label: str) -> ChosenImage:
    return ChosenImage(page=page, path=str(row["path"]), label=label, row=int(row["row"]))
