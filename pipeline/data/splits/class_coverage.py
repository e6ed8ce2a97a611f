"""Move units so that each class is in enough parts of the data, and say why where it is not.

A unit (a group, copies of an image, or a single image) lies in one part (a split, or a fold) and
may hold several classes, so moving it for one class can take another class out of a part. The
repair is greedy: a class that is in too few parts gets the unit there that brings most classes to
one more part, and classes that this takes out of a part follow. A unit moves once, so it ends, with
the best assignment on its way; that there is no better one is not proven.

Nothing is random: the same units in the same order give the same result.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task, by_task
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import counted, few_names

Array = np.ndarray[Any, Any]

NEW = -1
"""The part of what has not been assigned."""
_TRAINED_IN = 2
"""In how many folds a class has to be, so that one can be validated and the other trained on."""


_Value = tuple[int, int, int]
"""What is to be had, the most important first: classes that can be trained, parts that are not
empty, and parts in which there are classes."""


@dataclass(frozen=True)
class Parts:
    """Which class has images in which unit, one entry for each pair, sorted by class.

    Args:
        labels: the numbers of the classes.
        units: the numbers of the units.
        fixed: the part that was assigned before, or `NEW`.
    """

    labels: Array
    units: Array
    fixed: Array


def spread(
    pairs: Parts, part_of: Array, numbers: Array, parts: Sequence[int], train: int | None = None
) -> Array:
    """Move new units so that each class is in each part, or in as many as it has units.

    Args:
        pairs: the classes that have images in each unit, sorted by class.
        part_of: the part of each unit, changed in place; those of units that were assigned before
            do not count.
        numbers: a number for each unit; the lowest moves first, and to `train` the highest.
        parts: the parts to fill.
        train: the part that each class needs before any other; None for folds, where it needs two.

    Returns:
        How many units of each class are in each part (classes, parts).
    """
    counts = _counts(pairs, part_of, parts)
    there = counts[:, list(parts)] > 0
    is_open = (there.sum(axis=1) < _enough(counts, parts)).any() or not there.any(axis=0).all()
    is_untrained = train is not None and not counts[:, train].all()
    if len(counts) and (is_open or is_untrained):
        units, fixed = np.unique(np.stack([pairs.units, pairs.fixed]), axis=1)
        every = Parts(np.full(len(units), len(counts)), units, fixed)  # so that no part is empty
        names = ("labels", "units", "fixed")
        joined = [np.concatenate([getattr(of, name) for of in (pairs, every)]) for name in names]
        _Repair(Parts(*joined), part_of, numbers, parts, train).repair()
        counts = _counts(pairs, part_of, parts)
    return counts


def _counts(pairs: Parts, part_of: Array, parts: Sequence[int]) -> Array:
    now = np.where(pairs.fixed == NEW, part_of[pairs.units], pairs.fixed)
    size = (int(pairs.labels.max(initial=-1)) + 1, max(*parts, int(now.max(initial=0))) + 1)
    counts = np.zeros(size, np.int64)
    np.add.at(counts, (pairs.labels, now), 1)
    return counts


def _enough(counts: Array, parts: Sequence[int]) -> Array:
    """Return in how many parts each class can be."""
    enough: Array = np.minimum(counts.sum(axis=1), len(parts))
    return enough


class _Repair:
    """The units on their way; the last class is in all of them."""

    def __init__(
        self, pairs: Parts, part_of: Array, numbers: Array, parts: Sequence[int], train: int | None
    ) -> None:
        self._part_of, self._parts, self._train = part_of, parts, train
        counts = _counts(pairs, part_of, parts)
        self._enough: list[int] = _enough(counts, parts).tolist()
        self._counts: list[list[int]] = counts.tolist()
        self._members: list[list[int]] = [[] for _ in self._counts]
        self._classes: dict[int, list[int]] = {}
        new = pairs.fixed == NEW
        labels, units = pairs.labels[new], pairs.units[new]
        order = np.lexsort((numbers[units], labels))
        for label, unit in zip(labels[order].tolist(), units[order].tolist(), strict=True):
            self._members[label].append(unit)
            self._classes.setdefault(unit, []).append(label)

    def repair(self) -> None:
        """Move units until every class is in enough parts, or no move is left."""
        came_from: dict[int, int] = {}  # in the order of the moves
        gain = highest = (0, 0, 0)
        best = 0
        waiting = [self._urgency(label) for label in range(len(self._counts))]
        heapify(waiting)
        while waiting:
            *_, label = heappop(waiting)
            options = list(self._options(label, came_from))
            if not options:
                continue
            more, _, _, unit, part = max(options)
            came_from[unit] = self._move(unit, part)
            for each in self._classes[unit]:
                heappush(waiting, self._urgency(each))
            gain = (gain[0] + more[0], gain[1] + more[1], gain[2] + more[2])
            if gain > highest:
                best, highest = len(came_from), gain
        for unit, part in list(came_from.items())[best:]:
            self._part_of[unit] = part

    def _urgency(self, label: int) -> tuple[int, int, int]:
        return self._value(label)[0], len(self._members[label]), label

    def _options(
        self, label: int, moved: Container[int]
    ) -> Iterator[tuple[_Value, int, int, int, int]]:
        """Yield the moves that bring a class to one more part, the best of which is the highest."""
        is_lacking = self._present(label) < self._enough[label]
        for place, part in enumerate(self._parts):
            if not self._counts[label][part] and (is_lacking or part == self._train):
                members = self._members[label]
                for rank, unit in enumerate(members[::-1] if part == self._train else members):
                    if unit not in moved and (gain := self._gain(unit, part))[0] >= 0:
                        yield gain, -place, -rank, unit, part

    def _gain(self, unit: int, part: int) -> _Value:
        """Return what a move adds to the values of all classes."""
        before = [self._value(label) for label in self._classes[unit]]
        here = self._move(unit, part)
        after = [self._value(label) for label in self._classes[unit]]
        self._move(unit, here)
        trained, whole, present = np.subtract(after, before).sum(axis=0).tolist()
        return trained, whole, present

    def _move(self, unit: int, part: int) -> int:
        """Move a unit, and return where it was."""
        here = int(self._part_of[unit])
        self._part_of[unit] = part
        for label in self._classes[unit]:
            self._counts[label][here] -= 1
            self._counts[label][part] += 1
        return here

    def _value(self, label: int) -> _Value:
        present = self._present(label)
        if label == len(self._counts) - 1:
            return 0, present, 0
        if self._train is None:
            return min(present, _TRAINED_IN), 0, present
        return min(self._counts[label][self._train], 1), 0, present

    def _present(self, label: int) -> int:
        return sum(self._counts[label][part] > 0 for part in self._parts)


SPLITS = ("train", "validation", "test")
_TRAIN = SPLITS.index("train")

Cause = Literal["memory", "groups", "too few"]


class Gap(NamedTuple):
    """A class without an image in a split."""

    label: int
    split: int
    cause: Cause
    """Earlier assignments, groups of several classes, or that a label has fewer images, copies and
    groups counted once, than there are splits."""


def fill_gaps(pairs: Parts, codes: Array, numbers: Array, needed: Sequence[int]) -> list[Gap]:
    """Move new units so that each class has one in each split, as far as possible.

    Args:
        pairs: the classes that have images in each unit, sorted by class.
        codes: the split of each unit, changed in place.
        numbers: a number for each unit; the lowest moves first.
        needed: splits for each class, training last.

    Returns:
        What is left.
    """
    counts = spread(pairs, codes, numbers, needed, train=_TRAIN)
    is_shared = (np.bincount(pairs.units) > 1)[pairs.units]
    gaps = []
    for label, place in np.argwhere(counts[:, list(needed)] == 0).tolist():
        own = pairs.labels == label
        cause: Cause = "groups" if is_shared[own].any() else "memory"
        if own.sum() < len(needed):
            cause = "too few"
        gaps.append(Gap(label, needed[place], cause))
    return gaps


def too_few(label: str, images: int, units: int, needed: Sequence[int]) -> DataError:
    """Return the error for a class that has fewer units than there are splits."""
    usable = counted(images, "usable image")
    together = f" ({units} if copies and groups count once)" if units < images else ""
    joined = ", remove copies that link its groups" if together else ""
    splits = ", ".join(SPLITS[split] for split in reversed(needed))
    what = f"Class '{label}'" if label else "The data"
    remedy = f"Add images to the class{joined}, or remove the class" if label else "Add images"
    return DataError(
        f"{what} has {usable}{together}, but each of the {len(needed)} splits ({splits}) needs "
        f"at least one. {remedy}."
    )


_TOGETHER = (
    "because images of one group stay in one split, as copies of an image do, and no assignment"
)
_REASONS: dict[Cause, tuple[str, str]] = {
    "memory": (
        "because images never change their split",
        "add some to {names}, or choose another data.split_seed",
    ),
    "groups": (
        f"{_TOGETHER} of the new images was found that puts every class into every split",
        "add images of other groups to {names}, or choose another data.split_seed",
    ),
    "too few": (
        "because they are on too few different images to be in every split",
        "nothing can be said about them there; add images of {names}",
    ),
}


def notes_on_gaps(
    gaps: Sequence[Gap], names: Sequence[str], task: Task = SINGLE_LABEL
) -> list[str]:
    """Return a sentence for each split and cause, with the remedy.

    Args:
        gaps: those of held-back splits.
        names: the names of the classes, by number.
        task: whether they are classes, or labels of sets.
    """
    notes, words = [], by_task(task)
    for split in (SPLITS.index("test"), SPLITS.index("validation")):
        for cause, (reason, remedy) in _REASONS.items():
            labels = [names[gap.label] for gap in gaps if (gap.split, gap.cause) == (split, cause)]
            if labels:
                classes = counted(len(labels), words.one, words.several)
                action = remedy.format(names=few_names(sorted(labels), 3))
                notes.append(f"{classes} without {SPLITS[split]} images, {reason}; {action}")
    return notes
