"""Metrics on slices of the images: by group, by size, by any column of the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate, share
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
_MOST_VALUES = 12
_QUARTERS = 4
_UNITS = {"size": "px", "width": "px", "height": "px"}


class ImageSubset(FrozenModel):
    """A subset of the images."""

    column: str
    value: str
    images: int
    small: bool
    """Fewer images than `evaluation.small_sample`."""
    differs: bool
    """Whether the interval of its metric excludes that of all images."""


class Slice(ImageSubset):
    """A subset of the images, and the accuracy on it."""

    accuracy: MetricEstimate

    @property
    def metric(self) -> MetricEstimate:
        """What is compared with that of all images."""
        return self.accuracy


def slices(predictions: Predictions, config: EvaluationConfig) -> tuple[Slice, ...]:
    """Return the slices by each chosen column; a column with one value has none.

    Args:
        predictions: of all images.
        config: has the columns.
    """
    right_N, groups = predictions.predicted == predictions.labels, predictions.groups

    def accuracy(chosen_N: Array) -> MetricEstimate:
        return share(right_N[chosen_N], groups_within(chosen_N, groups))

    measured = measured_parts(predictions.table, config, accuracy, float(right_N.mean()))
    return tuple(Slice(**part, accuracy=estimate) for part, estimate, _ in measured)


def groups_within(chosen_N: Array, groups: ImageGroups | None) -> ImageGroups | None:
    """Return the groups of the images of a slice, given by a mask (N).

    A slice of a single group, such as a camera, is about that group: its images are its sample.
    """
    own = groups.among(np.flatnonzero(chosen_N)) if groups is not None else None
    return own if own is not None and own.count > 1 else None


def measured_parts(
    table: pd.DataFrame,
    config: EvaluationConfig,
    metric: Callable[[Array], MetricEstimate],
    overall: float,
) -> Iterator[tuple[dict[str, Any], MetricEstimate, Array]]:
    """Yield the fields of `ImageSubset`, the metric and the mask of each subset by each column.

    Args:
        table: predictions of N images.
        config: has the columns; one with a single value has no subsets.
        metric: returns that of the images that a mask (N) chooses.
        overall: that of all images.
    """
    for column in config.slices:
        parts = list(_parts(column, _values(table, column)))
        if len(parts) < 2:  # noqa: PLR2004 - one part is no division
            continue
        for value, chosen_N in parts:
            estimate, images = metric(chosen_N), int(chosen_N.sum())
            yield (
                {
                    "column": column,
                    "value": value,
                    "images": images,
                    "small": images < config.small_sample,
                    "differs": not estimate.low <= overall <= estimate.high,
                },
                estimate,
                chosen_N,
            )


def undivided(table: pd.DataFrame, config: EvaluationConfig) -> dict[str, str]:
    """Return the chosen columns that have one value for all images, with that value."""
    reasons = {}
    for column in config.slices:
        parts = list(_parts(column, _values(table, column)))
        if len(parts) == 1:
            reasons[column] = parts[0][0]
    return reasons


def _values(table: pd.DataFrame, column: str) -> pd.Series[Any]:
    if column == "size":
        return table[["width", "height"]].min(axis=1)
    if column == "folder":
        return table["path"].map(lambda path: str(PurePosixPath(path).parent))
    return table[column]


def _parts(column: str, values: pd.Series[Any]) -> Iterator[tuple[str, Array]]:
    """Yield the name of each slice and a mask of its images (N)."""
    if pd.api.types.is_numeric_dtype(values):
        yield from _quarters(values.to_numpy(), column)
    else:
        yield from _most_frequent(values.fillna("").astype(str))


def _quarters(values_N: Array, column: str) -> Iterator[tuple[str, Array]]:
    """Divide numbers at their quartiles; up to four distinct numbers are kept as they are."""
    distinct = np.unique(values_N)
    if len(distinct) <= _QUARTERS:
        codes_N = np.searchsorted(distinct, values_N)
    else:
        inner = np.quantile(values_N, np.arange(1, _QUARTERS) / _QUARTERS)
        codes_N = np.searchsorted(np.unique(inner), values_N, side="left")
    for code in np.unique(codes_N):
        chosen_N = codes_N == code
        yield _range_text(values_N[chosen_N].min(), values_N[chosen_N].max(), column), chosen_N


def _range_text(low: float, high: float, column: str) -> str:
    first, last = _number_text(low, column), _number_text(high, column)
    if first == last:
        return first
    unit = f" {_UNITS[column]}" if column in _UNITS else ""
    return f"{first.removesuffix(unit)} to {last}"


def _number_text(number: float, column: str) -> str:
    if column == "bytes":
        for unit, size in (("MB", 1e6), ("kB", 1e3)):
            if number >= size:
                return f"{number / size:.1f} {unit}"
        return f"{number:.0f} bytes"
    return f"{number:.0f} {_UNITS[column]}" if column in _UNITS else f"{number:g}"


def _most_frequent(values: pd.Series[Any]) -> Iterator[tuple[str, Array]]:
    """Keep the most frequent values in descending order, and merge the others."""
    counts = values.value_counts(sort=False)
    ordered = sorted(counts.index, key=lambda value: (-counts[value], value))
    kept = ordered if len(ordered) <= _MOST_VALUES else ordered[: _MOST_VALUES - 1]
    for value in kept:
        yield value or "none given", (values == value).to_numpy()
    if len(kept) < len(ordered):
        others = f"{len(ordered) - len(kept)} others"
        yield others, (~values.isin(kept)).to_numpy()
