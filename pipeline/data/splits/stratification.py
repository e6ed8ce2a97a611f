"""Iterative stratification of images with sets of labels (Sechidis, Tsoumakas and Vlahavas 2011).

"On the Stratification of Multi-label Data", Algorithm 1: the label with the fewest images left is
distributed first, each of its images to the part that lacks most images of this label; of several
parts, to the one that lacks most images at all. Here a unit (images of one group, and copies) goes
to a part as a whole, units with most images of the label first, and images that were assigned
before count as they are, so that new ones make up for what a part lacks. Images without labels
follow as if this were a label of its own. Nothing is random: what the paper draws is decided by
a number of each unit, which is made of its content.

A label with hardly any units left fills the parts that have none of it, the most important first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchline.pipeline.data.labels.label_sets import LabelPairs

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
NEW = -1
"""The part of what has not been assigned."""
_SAME = 1e-9
"""Numbers of images that differ by less are equal: shares are decimal fractions."""


@dataclass(frozen=True)
class Stratum:
    """Images to distribute, N, in units.

    Args:
        units: the number of each image's unit (N,), from 0.
        pairs: the labels of the images, one entry for each label of each image.
        fixed: the part of each image that was assigned before (N,), else `NEW`. All images of a
            unit are new, or none is.
        numbers: a number for each unit, in [0, 1); it decides what is otherwise equal.
    """

    units: Integers
    pairs: LabelPairs
    fixed: Integers
    numbers: Floats

    def of(self, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Stratum:
        """Return some of the images (N,), with the numbers that units and labels have here."""
        place_N, own = np.cumsum(rows) - 1, rows[self.pairs.images]
        images, labels = place_N[self.pairs.images[own]], self.pairs.labels[own]
        pairs = LabelPairs(images, labels, self.pairs.names)
        return Stratum(self.units[rows], pairs, self.fixed[rows], self.numbers)


def chance_of(text: str) -> float:
    """Return a number in [0, 1) that a text, such as a seed and the key of a unit, determines."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / 2**56


def rank_units(stratum: Stratum, shares: Sequence[float], order: Sequence[int]) -> Integers:
    """Return the part of each unit of one image with one label; `NEW` for those assigned before.

    Of each label, the units with the lowest numbers go to the first part, as many as it lacks,
    rounded so that all labels together have the share, too. So few units change their part if there
    are more images.

    Args:
        stratum: the images.
        shares: the share of each part; they add up to 1.
        order: the parts to fill one after the other; the last one gets the rest.
    """
    labels, is_new = stratum.pairs.labels, stratum.fixed == NEW
    names = len(stratum.pairs.names)
    units, own = stratum.units[is_new], labels[is_new]
    ranked_units = np.lexsort((stratum.numbers[units], own))
    counts = np.bincount(own, minlength=names)
    ranks = np.empty(len(units), np.int64)
    ranks[ranked_units] = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
    parts = np.full(len(stratum.numbers), NEW)
    parts[units] = order[-1]
    start = np.zeros(names, np.int64)
    for part in order[:-1]:
        there = np.bincount(labels[stratum.fixed == part], minlength=names)
        lacks = np.maximum(shares[part] * np.bincount(labels, minlength=names) - there, 0)
        end = start + np.diff(np.floor(np.cumsum(lacks) + 0.5), prepend=0).astype(np.int64)
        parts[units[(ranks >= start[own]) & (ranks < end[own])]] = part
        start = end
    return parts


def stratify(
    stratum: Stratum, shares: Sequence[float], important: Sequence[int] | None = None
) -> Integers:
    """Return the part of each unit; `NEW` for units that were assigned before.

    Args:
        stratum: the images.
        shares: the share of each part; they add up to 1, and a part without a share gets nothing.
        important: the parts that a label with few units needs, the most important first; None if
            it needs them all alike.
    """
    return _Distribution(stratum, shares, important).distributed()


class _Distribution:
    """What each part lacks, while units are assigned one after another."""

    def __init__(
        self, stratum: Stratum, shares: Sequence[float], important: Sequence[int] | None
    ) -> None:
        self._numbers, self._important = stratum.numbers, important
        count, parts = len(stratum.numbers), len(shares)
        images, labels = _with_none(stratum)
        self._labels = len(stratum.pairs.names)  # one more stands for images without labels
        of_part = np.asarray(shares, np.float64)[:, None]
        self._open = np.flatnonzero(of_part[:, 0] > 0)
        self._lacks = of_part * np.bincount(labels, minlength=self._labels + 1)
        self._there = np.zeros((parts, self._labels + 1), np.bool_)
        self._all = of_part[:, 0] * len(stratum.units)
        old = stratum.fixed[images] != NEW
        np.subtract.at(self._lacks, (stratum.fixed[images][old], labels[old]), 1)
        self._there[stratum.fixed[images][old], labels[old]] = True
        np.subtract.at(self._all, stratum.fixed[stratum.fixed != NEW], 1)
        self._sizes = np.bincount(stratum.units, minlength=count)
        self._parts = np.full(count, NEW)
        keys = stratum.units[images][~old] * (self._labels + 1) + labels[~old]
        pairs, self._counts = np.unique(keys, return_counts=True)
        self._pair_units, self._pair_labels = np.divmod(pairs, self._labels + 1)
        self._starts = np.searchsorted(self._pair_units, np.arange(count + 1))

    def distributed(self) -> Integers:
        """Assign every new unit, label by label."""
        order = np.argsort(self._pair_labels, kind="stable")
        ends = np.searchsorted(self._pair_labels[order], np.arange(self._labels + 2))
        left = np.diff(ends)
        self._left = left
        while (waiting := np.flatnonzero(left[:-1] > 0)).size or left[-1] > 0:
            label = int(waiting[np.argmin(left[waiting])]) if waiting.size else self._labels
            pairs = order[ends[label] : ends[label + 1]]
            pairs = pairs[self._parts[self._pair_units[pairs]] == NEW]
            ranks = np.lexsort((self._numbers[self._pair_units[pairs]], -self._counts[pairs]))
            for unit in self._pair_units[pairs[ranks]].tolist():
                self._assign(unit, self._choice(unit, label))
        return self._parts

    def _choice(self, unit: int, label: int) -> int:
        """Return the part that lacks most of a label, among those that have to get some."""
        parts = self._open
        missing = parts[~self._there[parts, label]]
        if label < self._labels and self._left[label] <= len(missing):
            parts = missing
            if self._important is not None:
                ordered = [part for part in self._important if part in set(missing.tolist())]
                parts = np.array(ordered[: self._left[label]] or parts)
        for lacking in (self._lacks[:, label], self._all):
            parts = parts[lacking[parts] >= lacking[parts].max() - _SAME]
        return int(parts[int(self._numbers[unit] * len(parts))])

    def _assign(self, unit: int, part: int) -> None:
        own = slice(self._starts[unit], self._starts[unit + 1])
        labels = self._pair_labels[own]
        self._lacks[part, labels] -= self._counts[own]
        self._there[part, labels] = True
        self._left[labels] -= 1
        self._all[part] -= self._sizes[unit]
        self._parts[unit] = part


def _with_none(stratum: Stratum) -> tuple[Integers, Integers]:
    """Return the pairs of images and labels, with one for each image without a label."""
    pairs = stratum.pairs
    without = np.setdiff1d(np.arange(len(stratum.units)), pairs.images)
    images = np.concatenate([pairs.images, without])
    labels = np.concatenate([pairs.labels, np.full(len(without), len(pairs.names))])
    return images, labels
