"""Match images that are crops, mirror images, rescaled or re-encoded versions of one another.

Candidates are found by the vectors of `thumbnails`: the whole images are indexed, and the
images, their mirror images and their crops are looked up. A candidate counts if its pixels match
once the crop is aligned as well as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from patchline.pipeline.data.near_duplicates.thumbnails import (
    PictureView,
    Thumbnails,
    fine_vectors,
    vectors,
)
from patchline.pipeline.data.near_duplicates.vector_search import VectorIndex
from patchline.pipeline.data.reading.child_processes import processors

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], None]


class Search(NamedTuple):
    """A view of the images that is looked up, and how similar its candidates have to be."""

    view: PictureView
    similarity: float
    shifts: tuple[float, ...]
    """The shifts of the aligned part to try, as fractions of a side."""
    sides: tuple[float, ...]
    """The sides of the aligned part to try, as fractions of the image's side."""


_FINE = (-0.045, -0.03, -0.015, 0.0, 0.015, 0.03, 0.045)
SEARCHES = (
    Search(PictureView(0, 0, 1), 0.86, (0.0,), (1.0,)),
    Search(PictureView(0, 0, 1, mirrored=True), 0.86, (0.0,), (1.0,)),
    *(
        Search(PictureView(top, left, 0.8), 0.76, _FINE, (0.78, 0.8, 0.82))
        for top in (0.02, 0.1, 0.18)
        for left in (0.02, 0.1, 0.18)
    ),
    *(
        Search(PictureView(top, left, 0.9), 0.8, _FINE, (0.87, 0.9, 0.93))
        for top in (0.02, 0.08)
        for left in (0.02, 0.08)
    ),
)
_MOST_CANDIDATES = 3
_MATCH = 0.94
"""Two images whose aligned vectors are at least this similar count as nearly the same."""
_PROMISING = 0.75
"""Candidates that match less than this in a few places are not aligned any further."""
_BLOCK = 2_048
LABEL = "Comparing images"


def matches(
    thumbnails: Thumbnails,
    on_progress: Progress | None = None,
    least: float = _MATCH,
    new: Array | None = None,
    searches: Sequence[Search] = SEARCHES,
) -> Iterator[tuple[Array, Array]]:
    """Yield pairs of rows (2, P) that nearly show the same, and how well they match, by view.

    Args:
        thumbnails: the thumbnails of the images to compare.
        on_progress: called while the views are looked up.
        least: the correlation, from -1 to 1, that they have to reach.
        new: rows of the images of which at least one is in each pair; by default all.
        searches: the views to look up.
    """
    everything = np.arange(len(thumbnails.luma_NHW))
    if len(everything) < 2 or (new is not None and not len(new)):  # noqa: PLR2004 - nothing to do
        return
    others = [(np.setdiff1d(everything, new), new)] if new is not None else []
    with threadpool_limits(1):
        lookups = [
            _Lookup(thumbnails, queries, candidates)
            for queries, candidates in [(everything if new is None else new, everything), *others]
        ]
        for number, search in enumerate(searches):
            if on_progress:
                on_progress(LABEL, number, len(searches))
            for lookup in lookups:
                whole, part = lookup.candidates(search)
                values = compute_similarity(thumbnails, whole, part, search)
                good = values >= least
                yield np.stack([whole[good], part[good]]), values[good]
    if on_progress:
        on_progress(LABEL, len(searches), len(searches))


class _Lookup:
    """Some images, of which views are looked up among some others.

    Args:
        thumbnails: the thumbnails of all images.
        queries: rows of the images to look up.
        candidates: rows of the images to find, in ascending order.
    """

    def __init__(self, thumbnails: Thumbnails, queries: Array, candidates: Array) -> None:
        self._thumbnails, self._asked, self._held = thumbnails, queries, candidates
        self._index = VectorIndex(vectors(thumbnails, SEARCHES[0].view, candidates))
        places = np.minimum(np.searchsorted(candidates, queries), len(candidates) - 1)
        self._own = np.where(candidates[places] == queries, places, -1)

    def candidates(self, search: Search) -> tuple[Array, Array]:
        """Return rows of images, and of those that may show the part of them that is searched."""
        looked_up = vectors(self._thumbnails, search.view, self._asked)
        whole, part = self._index.search(
            looked_up, search.similarity, _MOST_CANDIDATES, own_N=self._own
        )
        return self._asked[whole], self._held[part]


def compute_similarity(thumbnails: Thumbnails, whole: Array, part: Array, search: Search) -> Array:
    """Return how well parts of some images match other images: correlation, from -1 to 1.

    Args:
        thumbnails: the thumbnails of all images, whose rows `whole` and `part` name.
        whole: rows of the images that a part is taken of.
        part: rows of the images that the part is compared with.
        search: the view that shows the part, and the shifts and sides of it to try.
    """
    similarity = np.full(len(whole), -1.0, np.float32)
    coarse = search._replace(shifts=search.shifts[::3], sides=(search.view.side,))

    def align(start: int) -> None:
        rows = np.arange(start, min(start + _BLOCK, len(whole)))
        for step in (coarse, search):
            values = _compute_similarity(thumbnails, whole[rows], part[rows], step)
            similarity[rows] = np.maximum(similarity[rows], values)
            rows = rows[similarity[rows] >= _PROMISING]

    with ThreadPoolExecutor(processors()) as pool:
        for _ in pool.map(align, range(0, len(whole), _BLOCK)):
            pass
    return similarity


def _compute_similarity(thumbnails: Thumbnails, whole: Array, part: Array, search: Search) -> Array:
    original = thumbnails.take(whole)
    originals = fine_vectors(thumbnails.take(part), PictureView(0, 0, 1))
    similarity = np.full(len(whole), -1.0, np.float32)
    for side in search.sides:
        for top, left in _places(search, side):
            view = PictureView(top, left, side, search.view.mirrored)
            similarity = np.maximum(
                similarity, (originals * fine_vectors(original, view)).sum(axis=1)
            )
    return similarity


def _places(search: Search, side: float) -> Iterator[tuple[float, float]]:
    """Yield where a part of this size may begin."""
    room = 1 - side
    centre = (search.view.side - side) / 2
    tops, lefts = (
        sorted({round(min(max(first + centre + shift, 0), room), 4) for shift in search.shifts})
        for first in (search.view.top, search.view.left)
    )
    yield from ((top, left) for top in tops for left in lefts)
