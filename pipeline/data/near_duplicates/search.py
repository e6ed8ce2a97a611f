"""Find images that are crops, mirror images, rescaled or re-encoded versions of one another.

Images are compared in this process, or, where the launcher of a run has several machines, some
views of all images on each.

Which images are independent is decided here, too: frames of a burst, or images of one patient, are
hardly more evidence than one of them. A test that counts each rejects far too often, so it takes
one image of each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.manifests.same_images import (
    FILE,
    PIXELS,
    column_of,
    content_numbers,
    pixel_digest,
    unite,
)
from patchline.pipeline.data.near_duplicates.comparing_worker import find_matching_pairs
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails

if TYPE_CHECKING:
    from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory


Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]
LEAST_SIDE = 16
"""Pixels; different images with fewer on a side, such as scanned digits, look alike."""


def near_duplicates(
    thumbnails: Thumbnails,
    rows: pd.DataFrame,
    on_progress: Progress | None = None,
    memory: SearchMemory | None = None,
) -> Array:
    """Return a number for each image, equal for images that are nearly or exactly the same.

    Args:
        thumbnails: the thumbnails of the images, one for each of `rows`.
        rows: the images' rows of the manifest. They tell exact copies, of which one is compared,
            and sizes; images below 16 pixels on a side are compared with none.
        on_progress: called while the views are looked up.
        memory: knows which images an earlier search has compared; these are compared with new
            ones only.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    exact = content_numbers(rows)[0].to_numpy()
    _, first, contents = np.unique(exact, return_index=True, return_inverse=True)
    sides = rows[["width", "height"]].min(axis=1).to_numpy()[first]
    large = np.flatnonzero(sides >= LEAST_SIDE)
    keys = column_of(rows, PIXELS).where(lambda pixels: pixels != "", rows[FILE]).to_numpy()
    keys = keys[first[large]].astype(np.bytes_)
    new, pairs = memory.recall(keys) if memory else (None, np.zeros((2, 0), np.int64))
    matched = find_matching_pairs(thumbnails.take(first[large]), on_progress, new)
    pairs = np.concatenate([pairs, matched], axis=1)
    if memory and len(keys):
        memory.keep(keys, pairs)
    a, b = large[pairs]
    graph = coo_array((np.ones(len(a), np.bool_), (a, b)), shape=(len(first), len(first)))
    _, numbers = connected_components(graph, directed=False)
    numbers_N: Array = numbers[contents]
    return numbers_N


_MOST_ALIKE = 0.5


class ComparedPictures:
    """Pictures of images, as a network takes them, among which near duplicates are found."""

    def __init__(self) -> None:
        self._thumbnails = ThumbnailCollector()
        self._rows: dict[str, tuple[str, int, int]] = {}

    def add(self, key: str, pixels_HWC: Array, size: tuple[int, int]) -> None:
        """Add an image.

        Args:
            key: a text that identifies the image.
            pixels_HWC: the decoded image, uint8.
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
            keys: the key of each image; those that were not added are near duplicates of none.
            groups: the group of each image; empty where there is none.
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
        return unite(numbers, pd.Series(list(groups), dtype=object))

    def lacking(self, keys: Sequence[str]) -> int:
        """Return how many images have no picture."""
        return sum(key not in self._rows for key in keys)

    def too_small(self, keys: Sequence[str]) -> int:
        """Return how many images have too few pixels to be compared."""
        return sum(min(self._rows[key][1:]) < LEAST_SIDE for key in keys if key in self._rows)


def groups_alone(groups: Sequence[str]) -> Array:
    """Return a number for each image, equal for images of a group."""
    return unite(pd.Series(list(groups), dtype=object))


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
