"""The views of an image that a teacher sees."""

from __future__ import annotations

from typing import NamedTuple

_CROP = 7 / 8


class View(NamedTuple):
    """A part of the image, as fractions of its sides, and whether it is mirrored."""

    top: float = 0.0
    left: float = 0.0
    side: float = 1.0
    mirrored: bool = False


_REST = 1 - _CROP
VIEWS = (
    View(),
    View(mirrored=True),
    View(0, 0, _CROP),
    View(_REST, _REST, _CROP),
    View(0, _REST, _CROP),
    View(_REST, 0, _CROP),
)
"""In the order in which they are taken: crops lie in the corners, as much of an image as the usual
augmentation keeps at least."""


def views_of(count: int, *, mirrored: bool) -> tuple[View, ...]:
    """Return the first views; without mirror images, one less where there is one among them."""
    return tuple(view for view in VIEWS[:count] if mirrored or not view.mirrored)
