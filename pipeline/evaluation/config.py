"""Settings of the report: what it shows beside the figures."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipeline.section import Section

SplitChoice = Literal["auto", "all", "train", "validation", "test"]
"""Which images are evaluated; auto takes the test split if the data has one, else all."""

SLICE_COLUMNS = {
    "group": "the group that the source gave, such as a patient or a camera",
    "folder": "the folder that the file lies in",
    "label": "the true class",
    "mode": "how the file stores its colours",
    "size": "the shorter side of the image in pixels",
    "width": "width of the image in pixels",
    "height": "height of the image in pixels",
    "bytes": "size of the file",
}
"""What the images can be divided by, and what it means."""


def _known_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    for column in columns:
        if column not in SLICE_COLUMNS:
            close = difflib.get_close_matches(column, SLICE_COLUMNS, n=1, cutoff=0.5)
            nearest = f"did you mean {close[0]}? " if close else ""
            raise ValueError(
                f"there is no column {column!r} to divide the images by: {nearest}"
                f"Known are {', '.join(SLICE_COLUMNS)}"
            )
    return tuple(dict.fromkeys(columns))


class EvaluationConfig(Section):
    """What the report shows beside the figures."""

    slices: Annotated[tuple[str, ...], AfterValidator(_known_columns)] = ("group", "mode", "size")
    """Columns of the manifest by which the images are divided, each part with its own accuracy:
    group, folder, label, mode, size (the shorter side), width, height, bytes."""

    gallery_size: Annotated[int, Field(ge=0, le=100)] = 24
    """Images in each gallery of the report."""

    small_sample: Annotated[int, Field(ge=1)] = 30
    """Parts with fewer images than this are marked as too small to rely on."""
