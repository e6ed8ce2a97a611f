"""The labels that people have given to the images of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError
from patchline.pipeline.labelling.answer import labels_in
from patchline.pipeline.labelling.answers_table import table_labels

LABELS_TABLE = "labels.csv"
"""In a folder of images: columns path and label, as `patchline label` writes them."""
Labels = tuple[str, ...]
"""Of an image: its class, or any number of labels."""


class LabelsTable(NamedTuple):
    """The labels in the table of a folder."""

    by_path: dict[str, Labels]
    problem: str = ""
    """Why there are none; empty if the table can be read, or there is none."""


def labels_table(folder: Path) -> LabelsTable:
    """Return what the table of a folder says, if there is one."""
    file = folder / LABELS_TABLE
    if not file.is_file():
        return LabelsTable({})
    try:
        return LabelsTable(table_labels(file))
    except DataError:
        return LabelsTable(
            {}, f"{file.name} cannot be read as a table with the columns path and label; repair it"
        )


def labels_of(cell: str) -> Labels | None:
    """Return the labels that a data source lists for an image; None if it lists none."""
    if not cell:
        return None
    try:
        return labels_in(cell)
    except ValueError:  # the name of a class may look like a list
        return (cell,)
