"""Large arrays of N samples and K classes, some rows at a time, so that no copy is large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_NUMBERS_OF_ROWS, _NUMBERS_OF_COLUMNS = 2**19, 2**21
"""Of one piece: 4 and 16 MiB in float64."""


def row_slices(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices of rows, in order, that hold half a million numbers each, or one row."""
    rows, numbers = shape
    together = max(1, _NUMBERS_OF_ROWS // max(1, numbers))
    for start in range(0, rows, together):
        yield slice(start, min(rows, start + together))


def column_pieces(array_NK: Array, columns: Array) -> Iterator[tuple[int, Array]]:
    """Yield some columns one by one, each contiguous, with its number."""
    together = max(1, _NUMBERS_OF_COLUMNS // max(1, len(array_NK)))
    for start in range(0, len(columns), together):
        chosen = columns[start : start + together]
        yield from zip(chosen.tolist(), np.ascontiguousarray(array_NK[:, chosen].T), strict=True)
