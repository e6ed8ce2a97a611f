"""Whether images fit the value ranges and the bands that a model was trained with."""

from __future__ import annotations

import pandas as pd

from patchline.pipeline.data.pixel_values.file_summary import FileSummary
from patchline.pipeline.data.pixel_values.pixel_mapping import (
    EIGHT_BITS,
    PixelMapping,
    ValueFit,
    kind_words,
    number,
    white_of,
)
from patchline.pipeline.data.value_ranges.data_values import ValuedFile, valued_files
from patchline.pipeline.data.value_ranges.value_fit import FitCounts
from patchline.pipeline.errors import DataError

_MARGIN = 0.25
"""Of the range: values that far outside of it are said, because few are always clipped."""


def notes_on_fit(rows: pd.DataFrame, mapping: PixelMapping) -> list[str]:
    """Say which images have other values than those that a model was trained with.

    Args:
        rows: the usable images of a manifest.
        mapping: of the model.

    Raises:
        DataError: if the model cannot take some images.
    """
    files, counts = valued_files(rows), FitCounts()
    for file in files:
        if reason := _unfit(file, mapping):
            raise DataError(f"{file.path}: {reason}. Convert it, or remove it from the data.")
    for file in files:
        counts.add(_fit(file.summary, mapping), mapping, file.path)
    return list(counts.notes(mapping))


def with_unfit_damaged(manifest: pd.DataFrame, mapping: PixelMapping) -> pd.DataFrame:
    """Return a manifest in which images with values that a mapping does not know are damaged."""
    rows = manifest[manifest["status"] == "ok"]
    manifest = manifest.copy()
    for place, file in zip(rows.index, valued_files(rows), strict=True):
        if reason := _unfit(file, mapping):
            manifest.loc[place, ["status", "reason"]] = ["damaged", reason]
    return manifest


def _fit(summary: FileSummary, mapping: PixelMapping) -> ValueFit:
    """Return how the smallest and the largest value of a file fit the range of its type."""
    if not summary.is_deep or summary.kind == EIGHT_BITS:
        return ValueFit(reduced=summary.reduced)
    low, high = summary.extremes(mapping.bands)
    value_range = mapping.range_of(summary.kind)
    if value_range is None or not low <= high:
        return ValueFit(summary.kind, 0.0, *(value_range or (low, high)))
    margin = _MARGIN * (value_range[1] - value_range[0])
    is_outside = high > value_range[1] + margin or low < value_range[0] - margin
    return ValueFit(summary.kind, float(is_outside), low, high)


def _unfit(file: ValuedFile, mapping: PixelMapping) -> str:
    """Return why the model cannot take an image; empty if it can."""
    bands, summary = file.bands, file.summary
    if mapping.bands:
        if bands < max(mapping.bands):
            named = ", ".join(map(str, mapping.bands))
            return f"it has {bands} band{'' if bands == 1 else 's'}, but the model reads {named}"
    elif summary.unknown_bands:
        return f"it has {bands} bands, and the model was trained on images of grey or RGB"
    kinds = {kind for kind, _, _ in mapping.ranges} | {EIGHT_BITS}
    highest = max(summary.high[: summary.colors], default=0.0)
    if summary.kind not in kinds and not white_of(summary.kind, highest, summary.declared):
        there = [kind_words(kind) for kind, _, _ in mapping.ranges] or ["8-bit"]
        return (
            f"it has {kind_words(summary.kind)} values up to {number(highest)}, and the model was "
            f"trained on "
            f"{' and '.join(there)} values, so that nothing says which are black and white"
        )
    return ""
