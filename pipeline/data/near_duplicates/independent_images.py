"""Which images are independent: of near duplicates, and of the images of a group, one counts.

Frames of a burst, or images of one patient, are hardly more evidence than one of them. A test that
counts each rejects far too often, so it takes one image of each unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.manifests.same_images import pixel_digest, united
from patchline.pipeline.data.near_duplicates.search import LEAST_SIDE, Progress, near_duplicates
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector

Array = np.ndarray[Any, Any]
_MOST_ALIKE = 0.5


class ComparedPictures:
    """Pictures of images, as a network takes them, among which near duplicates are found."""

    def __init__(self) -> None:
        self._thumbnails = ThumbnailCollector()
        self._rows: dict[str, tuple[str, int, int]] = {}

    def add(self, key: str, pixels_HWC: Array, size: tuple[int, int]) -> None:
        """Add an image.

        Args:
            key: identifies it.
            pixels_HWC: of it, uint8.
            size: height and width of its file, in pixels.
        """
        if key not in self._rows:
            self._thumbnails.add(key, b"", pixels_HWC)
            self._rows[key] = (pixel_digest(pixels_HWC), *size)

    def units(
        self, keys: Sequence[str], groups: Sequence[str], on_progress: Progress | None = None
    ) -> Array:
        """Return a number for each image, equal for near duplicates and for images of a group.

        Args:
            keys: of the images; those without a picture are near duplicates of none.
            groups: of the images; empty where there is none.
            on_progress: called while the images are compared.
        """
        shown = [key for key in dict.fromkeys(keys) if key in self._rows]
        rows = pd.DataFrame(
            [(key, *self._rows[key]) for key in shown],
            columns=["sha256", "pixels", "height", "width"],
        )
        near_N = near_duplicates(self._thumbnails.of(rows["sha256"]), rows, on_progress)
        near = dict(zip(shown, near_N.astype(str), strict=True))
        numbers = pd.Series([near.get(key, key) for key in keys], dtype=object)
        return united(numbers, pd.Series(list(groups), dtype=object))

    def lacking(self, keys: Sequence[str]) -> int:
        """Return how many images have no picture."""
        return sum(key not in self._rows for key in keys)

    def too_small(self, keys: Sequence[str]) -> int:
        """Return how many images have too few pixels to be compared."""
        return sum(min(self._rows[key][1:]) < LEAST_SIDE for key in keys if key in self._rows)


def groups_alone(groups: Sequence[str]) -> Array:
    """Return a number for each image, equal for images of a group."""
    return united(pd.Series(list(groups), dtype=object))


def are_alike(units_N: Array, groups: Sequence[str]) -> bool:
    """Return whether most images are near duplicates of others, beyond their groups.

    Where all images show nearly the same, such as parts under one camera, near duplicates do not
    tell which of them are independent.
    """
    return len(set(units_N.tolist())) < _MOST_ALIKE * len(set(groups_alone(groups).tolist()))


def one_of_each(units_N: Array, keys: Sequence[str]) -> Array:
    """Return the places of one image of each unit, that with the first key, in ascending order.

    A digest as the key makes the choice a random one that does not change.
    """
    order_N = np.argsort(np.asarray(keys, dtype=np.str_), kind="stable")
    _, first = np.unique(units_N[order_N], return_index=True)
    places: Array = np.sort(order_N[first])
    return places
