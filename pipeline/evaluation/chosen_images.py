"""The test images of a run whose predictions are explained on a page of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    row: int
    """Number of the image in the prepared store."""


def choose_images(table: pd.DataFrame) -> tuple[ChosenImage, ...]:
    """Return the right test image with the highest probability, and the wrong one."""
    test = table[table["split"] == "test"]
    right = test["label"] == test["predicted"]
    chosen = []
    for page, rows in zip(TITLES, (test[right], test[~right]), strict=True):
        if len(rows):
            surest = rows.sort_values("probability").iloc[-1]
            chosen.append(
                ChosenImage(
                    page=page,
                    path=str(surest["path"]),
                    label=str(surest["label"]),
                    row=int(surest["row"]),
                )
            )
    return tuple(chosen)
