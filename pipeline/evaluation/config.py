"""Settings of the report, and what counts as a small sample."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.frozen_model import DocumentedModel

SplitChoice = Literal["auto", "all", "train", "validation", "test"]
"""Which images to evaluate; auto means the test split if the data has one, otherwise all."""


def before_image(split: str) -> str:
    """Return what stands before the word image for those of a split; nothing for all images."""
    return "" if split == "all" else f"{split} "


SMALL_SAMPLE = 30
"""Metrics of fewer images are marked as unreliable: of 30, half of which are right, the exact 95%
interval of the accuracy is 31% to 69%."""
GALLERY_SIZE = 24
"""Number of images in each gallery of the report."""
SLICE_COLUMNS = {
    "group": "group given by the data source, such as a patient or a camera",
    "folder": "folder of the file",
    "label": "true class",
    "mode": "colour mode of the file",
    "size": "shorter side of the image in pixels",
    "width": "width of the image in pixels",
    "height": "height of the image in pixels",
    "bytes": "size of the file",
}
"""Columns that the images can be sliced by, with their meaning."""
_OF_TABLE = "column of the data's table"


def meaning_of(column: str) -> str:
    """Return what a column that the images are sliced by means."""
    return SLICE_COLUMNS.get(column, _OF_TABLE)


def _check_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    for column in columns:
        if column not in SLICE_COLUMNS and not column.startswith(OWN_COLUMN):
            close = difflib.get_close_matches(column, SLICE_COLUMNS, n=1, cutoff=0.5)
            nearest = f"did you mean {close[0]}? " if close else ""
            raise ValueError(
                f"there is no column {column!r} to slice the images by; {nearest}"
                f"choose from: {', '.join(SLICE_COLUMNS)}; or {OWN_COLUMN}NAME, a column of a table"
            )
    return tuple(dict.fromkeys(columns))


class EvaluationConfig(DocumentedModel):
    """Contents of the report besides the metrics."""

    slices: Annotated[tuple[str, ...], AfterValidator(_check_columns)] = ("group", "mode", "size")
    """Columns of the manifest to slice the images by; each slice gets its own accuracy: group,
    folder, label, mode, size (the shorter side), width, height, bytes; or column:NAME, a further
    column of a table."""

    coverage: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Probability that the prediction set of a new image holds its true class. Packages also have
    the thresholds for 0.9, 0.95 and 0.99; how many validation images each needs is in the docs."""

    false_alarms: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Probability that an image like the validation images gets the warning that it is far from
    everything that the model has seen."""

    corruptions: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of test images that are corrupted in 14 ways (noise, blur, weather, compression) of
    five severities (arXiv 1903.12261), to report the accuracy on them: each such image is predicted
    71 times. 0 for none."""

    explanations: bool = True
    """In a run: show where the model looked in its most confident errors, test whether such maps
    are meaningful, and write the visual guide for its most confident correct prediction and its
    most confident error."""
