"""Give each class an image in each split, and say why where that is impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.data.splits.class_coverage import Demand, Search, Units
from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_sets import SINGLE_LABEL, Task
from patchline.pipeline.labels.label_words import by_task
from patchline.pipeline.terminal_words import counted

Array = np.ndarray[Any, Any]

SPLITS = ("train", "validation", "test")
NEW = -1
"""The split of what has not been assigned."""
_TRAIN = SPLITS.index("train")

Cause = Literal["memory", "groups", "not found", "too few"]


_MOST_UNCLEAR = 5
"""How many searches may end without an answer; then nothing more is tried."""


class Gap(NamedTuple):
    """A class without an image in a split."""

    label: int
    split: int
    cause: Cause
    """Earlier assignments, groups of several classes, that the search has found no way, or that a
    label has fewer images, copies and groups counted once, than there are splits."""


@dataclass(frozen=True)
class Parts:
    """Which class has images in which unit, one entry for each pair, sorted by class.

    Args:
        labels: the numbers of the classes.
        units: the numbers of the units.
        fixed: the split that was assigned before, or `NEW`.
    """

    labels: Array
    units: Array
    fixed: Array


@dataclass(frozen=True)
class Assignment:
    """The splits of the units before gaps are filled.

    Args:
        parts: of the data.
        codes: the split of each unit, changed in place; those of units that were assigned before do
            not count.
        numbers: of each new unit, which order them.
        fresh: returns the numbers and the splits of all units, as if none had been assigned before.
        needed: splits for each class, the most important last.
    """

    parts: Parts
    codes: Array
    numbers: Array
    fresh: Callable[[], tuple[Array, Array]]
    needed: Sequence[int]


def fill_gaps(assignment: Assignment) -> list[Gap]:
    """Move new units so that each class has one in each split, as far as possible.

    Returns:
        What is left.
    """
    parts, codes, needed = assignment.parts, assignment.codes, assignment.needed
    now = np.where(parts.fixed == NEW, codes[parts.units], parts.fixed)
    there = np.zeros((int(parts.labels.max(initial=-1)) + 1, len(SPLITS)), np.bool_)
    there[parts.labels, now] = True
    lacking = np.flatnonzero(~there[:, list(needed)].all(axis=1)).tolist()
    gaps: list[Gap] = []
    if not lacking:
        return gaps
    for component in _components(parts, lacking):
        one = _Component(parts, component, assignment.numbers, needed)
        solution = one.solved(codes, movable_only=True)
        for unit, split in solution.splits.items():
            codes[unit] = split
        if solution.gaps:
            gaps += _explained(solution, component, assignment)
    return sorted(gaps)


def _explained(solution: _Solution, component: Array, assignment: Assignment) -> list[Gap]:
    """Return the gaps with their cause: earlier assignments if there were none without them."""
    parts = assignment.parts
    gaps = [Gap(*gap) for gap in solution.gaps]
    if (parts.fixed[np.isin(parts.labels, component)] == NEW).all():
        return gaps
    numbers, codes = assignment.fresh()
    free = _Component(parts, component, numbers, assignment.needed).solved(
        codes, movable_only=False
    )
    if not free.gaps:
        return [gap._replace(cause="memory") for gap in gaps]
    unclear = any(cause == "not found" for _, _, cause in free.gaps)
    return [gap._replace(cause="not found" if unclear else "groups") for gap in gaps]


def _components(parts: Parts, lacking: list[int]) -> Iterable[Array]:
    """Yield the classes that units connect, for each set of them in which one is lacking."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    labels, units = int(parts.labels.max()) + 1, int(parts.units.max()) + 1
    edges = (parts.labels, labels + parts.units)
    size = labels + units
    graph = coo_array((np.ones(len(edges[0]), np.bool_), edges), shape=(size, size))
    _, numbers = connected_components(graph, directed=False)
    of_label = numbers[:labels]
    for number in dict.fromkeys(of_label[lacking].tolist()):
        yield np.flatnonzero(of_label == number)


class _Solution(NamedTuple):
    splits: dict[int, int]
    gaps: list[tuple[int, int, Cause]]


class _Component:
    """Classes that are connected by their units, and those units."""

    def __init__(self, parts: Parts, labels: Array, numbers: Array, needed: Sequence[int]) -> None:
        self._labels, self._needed = labels.tolist(), tuple(needed)
        starts = np.searchsorted(parts.labels, labels)
        ends = np.searchsorted(parts.labels, labels, side="right")
        self._rows = []
        for start, end in zip(starts, ends, strict=True):
            units, fixed = parts.units[start:end], parts.fixed[start:end]
            order = np.argsort(numbers[units], kind="stable")
            self._rows.append((units[order], fixed[order]))

    def solved(self, codes: Array, *, movable_only: bool) -> _Solution:
        """Return splits for the units: of the new ones, or of all as if nothing were assigned."""
        members, held = [], []
        for units, fixed in self._rows:
            is_free = (fixed == NEW) | (not movable_only)
            members.append(list(dict.fromkeys(units[is_free].tolist())))
            held.append(frozenset(fixed[~is_free].tolist()))
        free = Units(members, held, last=frozenset({_TRAIN}))
        start = {unit: int(codes[unit]) for of_class in members for unit in of_class}
        search = Search(free, [Demand(self._needed, len(self._needed))] * len(members), start)
        if search.solve():
            return _Solution(search.parts, [])
        return self._most(free, start)

    def _most(self, units: Units, start: dict[int, int]) -> _Solution:
        """Meet one demand after another; leave out those that cannot be met.

        Training comes first, then that no split is empty, then the test split.
        """
        everything = list(dict.fromkeys(unit for of_class in units.members for unit in of_class))
        units = Units([*units.members, everything], [*units.held, frozenset().union(*units.held)])
        classes = range(len(self._labels))
        order = [(_TRAIN, place) for place in classes]
        order += [(split, len(self._labels)) for split in self._needed]
        order += [(split, place) for split in self._needed if split != _TRAIN for place in classes]
        demands: list[tuple[int, ...]] = [()] * len(units.members)
        gaps: list[tuple[int, int, Cause]] = []
        splits, unclear = dict(start), 0
        for split, place in order:
            more = [*demands]
            more[place] = (split, *demands[place])
            now = {splits[unit] for unit in units.members[place]} | units.held[place]
            is_possible: bool | None = True if split in now else None
            if is_possible is None and unclear < _MOST_UNCLEAR:
                search = Search(units, [Demand(each, len(each)) for each in more], splits)
                is_possible, splits = search.solve(thorough=False), search.parts
                unclear += is_possible is None
            if is_possible:
                demands = more
            elif place in classes:
                cause: Cause = "not found" if is_possible is None else "groups"
                gaps.append((self._labels[place], split, cause))
        return _Solution(splits, gaps)


def too_few(label: str, images: int, units: int, needed: Sequence[int]) -> DataError:
    """Return the error for a class that has fewer units than there are splits."""
    usable = f"{images} usable image{'s' if images != 1 else ''}"
    together = f" ({units} if copies and groups count once)" if units < images else ""
    joined = ", remove copies that link its groups" if together else ""
    splits = ", ".join(SPLITS[split] for split in reversed(needed))
    what = f"Class '{label}'" if label else "The data"
    remedy = f"Add images to the class{joined}, or remove the class" if label else "Add images"
    return DataError(
        f"{what} has {usable}{together}, but each of the {len(needed)} splits ({splits}) needs "
        f"at least one. {remedy}."
    )


_TOGETHER = "because images of one group stay in one split, as copies of an image do, and no "
_REASONS: dict[Cause, tuple[str, str]] = {
    "memory": (
        "because images never change their split",
        "add some to {names}, or choose another data.split_seed",
    ),
    "groups": (
        f"{_TOGETHER}assignment of these groups puts every class into every split",
        "add images of other groups to {names}",
    ),
    "not found": (
        f"{_TOGETHER}assignment was found that puts every class into every split",
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
        names: of the classes.
        task: whether they are classes, or labels of sets.
    """
    notes, words = [], by_task(task)
    for split in (SPLITS.index("test"), SPLITS.index("validation")):
        for cause, (reason, remedy) in _REASONS.items():
            labels = [names[gap.label] for gap in gaps if (gap.split, gap.cause) == (split, cause)]
            if labels:
                classes = counted(len(labels), words.one, words.several)
                action = remedy.format(names=examples(sorted(labels)))
                notes.append(f"{classes} without {SPLITS[split]} images, {reason}; {action}")
    return notes
