"""The parts of a batch: micro-batches, and what each rank of a training run computes of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from patchline.pipeline.data.batches.batch_order import BatchOrder

_FEWEST_IMAGES = 2
"""Minimum of a part, because batch norm needs at least two images."""


def micro_batches(images: int, parts: int) -> Iterator[slice]:
    """Yield slices of nearly equal length, of at least two images if there are as many."""
    parts = max(1, min(parts, images // _FEWEST_IMAGES))
    bounds = [images * index // parts for index in range(parts + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield slice(start, stop)


@dataclass(frozen=True)
class BatchPart:
    """The images of a batch from `start` to `stop`, which one rank computes."""

    start: int
    stop: int
    batch_images: int
    """Size of the whole batch."""
    smallest: int
    """Size of the smallest part; with it, all ranks choose the same number of micro-batches."""
    counts: bool = True
    """False if the batch has too few images for all ranks, and this one repeats others."""
    has_image_before: bool = False
    """Whether the image before the part is loaded too, because MixUp and CutMix mix with it."""

    @classmethod
    def whole(cls, images: int) -> BatchPart:
        """Return the part of the only rank: the whole batch."""
        return cls(0, images, images, images)

    def micro_batches(self, parts: int) -> Iterator[tuple[slice, float]]:
        """Yield the slices of the part's micro-batches, and their shares of the whole batch."""
        parts = max(1, min(parts, self.smallest // _FEWEST_IMAGES))
        for each in micro_batches(self.stop - self.start, parts):
            share = (each.stop - each.start) / self.batch_images
            yield each, share if self.counts else 0.0


class DividedOrder:
    """The batches of an order, divided among ranks by position; yields those of one of them.

    Args:
        order: of the whole batches.
        rank: from 0.
        size: number of ranks.
        mixing: whether the images of a batch are mixed, each with the one before it.
    """

    def __init__(self, order: BatchOrder, rank: int, size: int, *, mixing: bool) -> None:
        self.order, self._mixing = order, mixing and size > 1
        self._rank, self._size = rank, size

    def at(self, step: int) -> BatchPart:
        """Return the part of the batch of a step."""
        return self.part_of(self.order.images_at(step))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for keys in self.order:
            part = self.part_of(len(keys))
            before = [keys[part.start - 1]] if part.has_image_before else []
            yield before + keys[part.start : part.stop]

    def part_of(self, images: int) -> BatchPart:
        """Return the part of a batch of so many images."""
        if self._size == 1:
            return BatchPart.whole(images)
        parts = list(micro_batches(images, self._size))
        counts = self._rank < len(parts)
        mine = parts[self._rank if counts else 0]
        smallest = min(each.stop - each.start for each in parts)
        return BatchPart(mine.start, mine.stop, images, smallest, counts, self._mixing)
