"""Say that images do not fit the value range that a model was trained with.

This module is copied into every packaged model.
"""

from __future__ import annotations

import threading

from pipeline.data.pixel_values.pixel_mapping import Clipped, PixelMapping, number

_MOST_OUTSIDE = 0.02
"""Share of an image's values that may lie outside of the range without a word."""


class RangeFits:
    """Counts the images that do not fit the range; `note` may be called by several threads.

    Args:
        mapping: of the training.
    """

    def __init__(self, mapping: PixelMapping) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()
        self._count, self._low, self._high = 0, float("inf"), float("-inf")

    def note(self, fit: Clipped) -> None:
        """Count an image, if too many of its values lie outside."""
        if fit.share > _MOST_OUTSIDE:
            with self._lock:
                self._count += 1
                self._low, self._high = min(self._low, fit.low), max(self._high, fit.high)

    def words(self) -> str:
        """Return how many images do not fit, and how far, and forget them; empty for none."""
        with self._lock:
            count, low, high = self._count, self._low, self._high
            self._count, self._low, self._high = 0, float("inf"), float("-inf")
        if not count:
            return ""
        ranges = [f"{number(low)} to {number(high)}" for _, low, high in self._mapping.ranges]
        return (
            f"{count:,} image{' has' if count == 1 else 's have'} values outside of the range "
            f"{' or '.join(ranges) or '0 to 65,535'} that the model was trained with: from "
            f"{number(low)} to {number(high)}; they are clipped"
        )
