"""Give each label of multi-label data an image in each split, and say why where that is impossible.

Stratification leaves few gaps. One is filled by moving a new unit whose labels all stay where they
are; only if there is none, the search of `split_gaps` moves several. A label on fewer images than
there are splits is no reason to stop, as it is for a class: it is trained on, and said.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchline.pipeline.data.splits.split_gaps import NEW, SPLITS, Assignment, Cause, Gap, fill_gaps

Array = np.ndarray[Any, Any]
_TRAIN = SPLITS.index("train")
_SEARCHED = 50_000
"""Pairs of labels and units up to which an assignment is searched for: a few seconds."""


def fill_label_gaps(assignment: Assignment) -> list[Gap]:
    """Move new units so that each label has one in each split, as far as possible.

    Returns:
        What is left.
    """
    parts = assignment.parts
    units_of = np.bincount(parts.labels)
    few = units_of < len(assignment.needed)
    gaps = _Repair(assignment).left(few)
    new = np.bincount(parts.labels[parts.fixed == NEW], minlength=len(units_of)) > 0
    open_gaps = [gap for gap in gaps if _is_open(gap, few, new)]
    if open_gaps and len(parts.units) <= _SEARCHED:
        gaps = fill_gaps(assignment)
        return [gap._replace(cause="too few") if few[gap.label] else gap for gap in gaps]
    return gaps


def _is_open(gap: Gap, few: Array, new: Array) -> bool:
    """Return whether moving several units at once may fill a gap."""
    return bool(new[gap.label] and (not few[gap.label] or gap.split == _TRAIN))


class _Repair:
    """Fills gaps one by one with units that no other label needs where they are."""

    def __init__(self, assignment: Assignment) -> None:
        self._parts, self._needed = assignment.parts, assignment.needed
        self._codes, self._numbers = assignment.codes, assignment.numbers
        parts = assignment.parts
        self._starts = np.searchsorted(parts.labels, np.arange(parts.labels.max(initial=-1) + 2))
        self._by_unit = np.argsort(parts.units, kind="stable")
        self._sorted = parts.units[self._by_unit]
        now = np.where(parts.fixed == NEW, self._codes[parts.units], parts.fixed)
        self._counts = np.zeros((len(self._starts) - 1, len(SPLITS)), np.int64)
        np.add.at(self._counts, (parts.labels, now), 1)

    def left(self, few: Array) -> list[Gap]:
        """Fill what can be filled; return the rest, with causes."""
        gaps = []
        for split in reversed(self._needed):  # training first
            for label in np.flatnonzero(self._counts[:, split] == 0).tolist():
                worth = not few[label] or split == _TRAIN
                if self._counts[label, split] or (worth and self._filled(label, split)):
                    continue
                cause: Cause = "too few" if few[label] else self._cause(label)
                gaps.append(Gap(label, split, cause))
        return sorted(gaps)

    def _filled(self, label: int, split: int) -> bool:
        """Move the first unit of a label to a split that all its labels can spare."""
        for unit in self._new_units(label):
            labels = self._labels(unit)
            here = int(self._codes[unit])
            if split != here and (self._counts[labels, here] > 1).all():
                self._counts[labels, here] -= 1
                self._counts[labels, split] += 1
                self._codes[unit] = split
                return True
        return False

    def _new_units(self, label: int) -> list[int]:
        own = slice(self._starts[label], self._starts[label + 1])
        units = self._parts.units[own][self._parts.fixed[own] == NEW]
        units = np.unique(units)
        ordered: list[int] = units[np.argsort(self._numbers[units], kind="stable")].tolist()
        return ordered

    def _labels(self, unit: int) -> Array:
        start, end = np.searchsorted(self._sorted, [unit, unit + 1])
        labels: Array = self._parts.labels[self._by_unit[start:end]]
        return labels

    def _cause(self, label: int) -> Cause:
        return "not found" if self._new_units(label) else "memory"
