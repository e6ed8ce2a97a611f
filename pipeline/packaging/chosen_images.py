"""The test images of a run whose predictions are explained."""

from __future__ import annotations

from pathlib import Path

from pipeline.section import Section

EXPLANATIONS = "explanations"
"""Folder of the pages, in the package's folder and among the run's artifacts."""
_COLUMNS = ["split", "path", "label", "predicted", "probability", "row"]


class ChosenImage(Section):
    """A test image whose prediction is explained."""

    page: str
    """Name of the page, without `.html`."""
    path: str
    label: str
    row: int
    """Number of the image in the prepared store."""


def choose_images(predictions_file: Path) -> tuple[ChosenImage, ...]:
    """Return the right test image with the highest probability, and the wrong one."""
    import pandas as pd

    table = pd.read_parquet(predictions_file, columns=_COLUMNS)
    test = table[table["split"] == "test"]
    right = test["label"] == test["predicted"]
    chosen = []
    for page, rows in (("surest_right", test[right]), ("worst_wrong", test[~right])):
        if len(rows):
            found = rows.sort_values("probability").iloc[-1]
            chosen.append(
                ChosenImage(
                    page=page,
                    path=str(found["path"]),
                    label=str(found["label"]),
                    row=int(found["row"]),
                )
            )
    return tuple(chosen)
