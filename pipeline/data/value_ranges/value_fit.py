"""Say that images have other values than those that a model was trained with.

This module is copied into every packaged model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    EIGHT_BITS,
    PixelMapping,
    ValueFit,
    kind_words,
    number,
)

_MOST_OUTSIDE = 0.02
"""Share of an image's values that may lie outside of the range without a word."""
_LEAST_REACHED = 1 / 16
"""An image with all values in a smaller part of the range, at its lower end, is almost black."""
_SAID_SHARE = 0.1
"""Share of the images of a type that may be almost black without a word."""


@dataclass
class _Reach:
    """Some images, and their smallest and their largest value."""

    count: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    example: str = ""

    def add(self, fit: ValueFit, path: str) -> None:
        self.count += 1
        self.low, self.high = min(self.low, fit.low), max(self.high, fit.high)
        self.example = self.example or path

    def images(self, total: int) -> str:
        """Return how many images they are: `1 image has`, `2 of 3 images have`."""
        of_all = f" of {total:,} images" if total > self.count else f" image{'s' * (total > 1)}"
        return f"{self.count:,}{of_all} {'has' if self.count == 1 else 'have'}"

    @property
    def such_as(self) -> str:
        return f", such as {self.example}" if self.example else ""


@dataclass
class FitCounts:
    """Counts the images whose values differ from those that a model was trained with."""

    total: int = 0
    kinds: dict[str, _Reach] = field(default_factory=dict)
    """All images, by the type of their values."""
    outside: dict[str, _Reach] = field(default_factory=dict)
    """Those with too many values outside of the range, by type."""
    reduced: _Reach = field(default_factory=_Reach)
    """Those that were decoded to 8 bits although their files have more; their bits."""

    dark: dict[str, _Reach] = field(default_factory=dict)
    """Those that are almost black in the range, by type."""

    def add(self, fit: ValueFit, mapping: PixelMapping, path: str = "") -> None:
        """Count an image.

        Args:
            fit: how its values fit.
            mapping: the value ranges that the model was trained with.
            path: the path of the image, to name one as an example.
        """
        self.total += 1
        self.kinds.setdefault(fit.kind, _Reach()).add(fit, path)
        if fit.share > _MOST_OUTSIDE:
            self.outside.setdefault(fit.kind, _Reach()).add(fit, path)
        value_range = None if fit.kind == EIGHT_BITS else mapping.range_of(fit.kind)
        if (
            value_range
            and fit.high < value_range[0] + (value_range[1] - value_range[0]) * _LEAST_REACHED
        ):
            self.dark.setdefault(fit.kind, _Reach()).add(fit, path)
        if fit.reduced:
            self.reduced.add(ValueFit(low=fit.reduced, high=fit.reduced), path)

    def notes(self, mapping: PixelMapping) -> Iterator[str]:
        """Yield what a person should know, a clause for each cause.

        Args:
            mapping: the value ranges that the model was trained with.
        """
        trained = mapping.trained_kinds
        words = " and ".join(map(kind_words, trained))
        for kind, reach in sorted(self.kinds.items()):
            if kind not in trained:
                yield (
                    f"{reach.images(self.total)} {kind_words(kind)} values{reach.such_as}, and the "
                    f"model was trained on images of {words} values only: {_own_white(kind)}"
                )
        for kind, low, high in mapping.ranges:
            if outside := self.outside.get(kind):
                yield (
                    f"{outside.images(self.total)} {kind_words(kind)} values outside of the range "
                    f"{number(low)} to {number(high)} that the model was trained with"
                    f"{outside.such_as}: from {number(outside.low)} to {number(outside.high)}; "
                    "they are clipped"
                )
            dark = self.dark.get(kind)
            if dark and dark.count >= _SAID_SHARE * self.kinds[kind].count:
                yield (
                    f"{dark.images(self.total)} {kind_words(kind)} values of at most "
                    f"{number(dark.high)}{dark.such_as}, and the model was trained with the range "
                    f"{number(low)} to {number(high)}: almost black"
                )
        if self.reduced.count:
            yield (
                f"{self.reduced.images(self.total)} {bits_words(self.reduced.low)} per color"
                f"{self.reduced.such_as}, which the decoder of their format reduces to 8"
            )


class RangeFits:
    """Counts the images that a model gets; `note` may be called by several threads.

    Args:
        mapping: the value ranges that the model was trained with.
    """

    def __init__(self, mapping: PixelMapping) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()
        self._counts = FitCounts()

    def note(self, fit: ValueFit) -> None:
        """Count an image."""
        with self._lock:
            self._counts.add(fit, self._mapping)

    def words(self) -> str:
        """Return how images differ from those of the training, and forget them; empty if not."""
        with self._lock:
            counts, self._counts = self._counts, FitCounts()
        return "; ".join(counts.notes(self._mapping))


def bits_words(bits: float) -> str:
    """Return bits in words: `10 bits`."""
    return f"{number(bits)} bits"


def _own_white(kind: str) -> str:
    """Return what becomes white without a range of the training."""
    if kind == EIGHT_BITS:
        return "0 becomes black and 255 white, as in every image of 8 bits"
    return "0 becomes black, and white is what their files declare, or else 65,535"
