"""Which image is asked about next: every third at random, the others as they are ranked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from patchline.pipeline.data.labels.answer_columns import FINDING, RANDOM
from patchline.pipeline.data.labels.answers.answer import REPRESENTATIVE
from patchline.plugins.tools.label.pool import drawn_at_random

Source = Literal["representative", "uncertain"]
REST = "rest"
"""The image was next in a random order of those that are left, because no other was ranked."""
EVERY = 3
"""One of so many images is drawn at random."""
IsOpen = Callable[[str], bool]


class Chosen(NamedTuple):
    """An image to ask about."""

    key: str
    source: str


class ImageOrder:
    """The order of the images of a pool.

    Args:
        keys: of the images.
        seed: of the random draws.
        listed: the only images to ask about, in this order; None for all, as they are ranked.

    Attributes:
        listed: likewise, as the keys of a dictionary.
    """

    def __init__(self, keys: Sequence[str], seed: int, listed: Sequence[str] | None = None) -> None:
        self.seed = seed
        self.listed = None if listed is None else dict.fromkeys(listed)
        self._near: Mapping[str, Sequence[str]] = {}
        self._lock = threading.Lock()  # images arrive while their near duplicates are found
        self.use(keys)
        self._ranked: list[str] = []
        self._source: Source | None = None
        self._turn = 0

    def use(self, keys: Sequence[str]) -> None:
        """Use these images; each of those that were there before keeps its place."""
        with self._lock:
            self._keys = list(keys)
            self._draw()

    def _draw(self) -> None:
        self._sample, self._others = drawn_at_random(self._keys, self.seed, self._near)

    def group(self, near: Mapping[str, Sequence[str]]) -> None:
        """Draw near duplicates together, so that no choice takes one of them from the sample.

        Args:
            near: the near duplicates of images that have some.
        """
        with self._lock:
            self._near = near
            self._draw()
        sample = self.sample
        self._ranked = [key for key in self._ranked if key not in sample]

    @property
    def source(self) -> Source | None:
        """How images are ranked at the moment; None for a random order."""
        return self._source

    @property
    def sample(self) -> frozenset[str]:
        """The images that only random draws ask about."""
        return frozenset(self._sample)

    def rank(self, keys: Sequence[str], source: Source) -> None:
        """Ask about these images next, the first one first."""
        self._ranked, self._source = list(keys), source

    def ranked(self, is_open: IsOpen) -> int:
        """Return how many ranked images are left."""
        return sum(map(is_open, self._ranked))

    def next(self, is_open: IsOpen) -> Chosen | None:
        """Return the next image; None if there is none.

        Args:
            is_open: whether an image may be asked about.
        """
        if self.listed is not None:
            key = _first(self.listed, is_open)
            return Chosen(key, FINDING) if key else None
        turn = self._turn
        self._turn += 1
        if turn % EVERY == EVERY - 1 and (key := _first(self._sample, is_open)):
            return Chosen(key, RANDOM)
        if key := _first(self._ranked, is_open):
            return Chosen(key, self._source or REPRESENTATIVE)
        for keys in (self._others, self._sample):
            if key := _first(keys, is_open):
                return Chosen(key, RANDOM if self._source is None or keys is self._sample else REST)
        return None


def _first(keys: Iterable[str], is_open: IsOpen) -> str:
    return next(filter(is_open, keys), "")
