"""The side and the channels that images get if no setting says so."""

from __future__ import annotations

from collections.abc import Iterable

_SIZES = (8, 16, 32, 64, 96)
_GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"}


def default_image_size(median_side: int) -> int:
    """Return the largest of 8, 16, 32, 64 and 96 pixels that is at most the median side."""
    return max([size for size in _SIZES if size <= median_side], default=_SIZES[0])


def are_grey(modes: Iterable[str]) -> bool:
    """Return whether all of these modes of Pillow are without color."""
    return _GREY_MODES.issuperset(modes)
