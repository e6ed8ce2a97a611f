"""Whether images fit the value ranges and the bands that a model was trained with."""

from __future__ import annotations

import pandas as pd

from pipeline.data.pixel_values.data_values import band_counts, summaries
from pipeline.data.pixel_values.file_summary import FileSummary
from pipeline.data.pixel_values.pixel_mapping import (
    EIGHT_BITS,
    PixelMapping,
    kind_words,
    number,
    white_of,
)
from pipeline.errors import DataError

_MARGIN = 0.25
"""Of the range: values that far outside of it are said, because few are always clipped."""


def notes_on_fit(rows: pd.DataFrame, mapping: PixelMapping) -> list[str]:
    """Say which images have values outside of the model's ranges.

    Args:
        rows: the usable images of a manifest.
        mapping: of the model.

    Raises:
        DataError: if the model cannot take some images.
    """
    files = list(zip(rows["path"], band_counts(rows), summaries(rows), strict=True))
    for path, bands, summary in files:
        reason = _unfit(bands, summary, mapping)
        if reason:
            raise DataError(f"{path}: {reason}. Convert it, or remove it from the data.")
    notes = []
    for kind, low, high in mapping.ranges:
        outside = [
            (path, summary)
            for path, _, summary in files
            if summary.kind == kind and _is_outside(summary, low, high)
        ]
        if outside:
            path, summary = outside[0]
            count = len(outside)
            notes.append(
                f"{count:,} image{' has' if count == 1 else 's have'} {kind_words(kind)} values "
                f"outside of the range {number(low)} to {number(high)} that the model was trained "
                f"with, such as {path} ({number(min(summary.low))} to {number(max(summary.high))});"
                " they are clipped"
            )
    return notes


def _unfit(bands: int, summary: FileSummary, mapping: PixelMapping) -> str:
    """Return why the model cannot take an image; empty if it can."""
    if mapping.bands:
        if bands < max(mapping.bands):
            named = ", ".join(map(str, mapping.bands))
            return f"it has {bands} band{'' if bands == 1 else 's'}, but the model reads {named}"
    elif summary.unknown_bands:
        return f"it has {bands} bands, and the model was trained on images of grey or RGB"
    known = {kind for kind, _, _ in mapping.ranges} | {EIGHT_BITS}
    highest = max(summary.high[: summary.colors], default=0.0)
    if summary.kind not in known and not white_of(summary.kind, highest, summary.declared):
        there = [kind_words(kind) for kind, _, _ in mapping.ranges] or ["8-bit"]
        return (
            f"it has {kind_words(summary.kind)} values up to {number(highest)}, and the model was "
            f"trained on "
            f"{' and '.join(there)} values, so that nothing says which are black and white"
        )
    return ""


def _is_outside(summary: FileSummary, low: float, high: float) -> bool:
    margin = _MARGIN * (high - low)
    return max(summary.high) > high + margin or min(summary.low) < low - margin
