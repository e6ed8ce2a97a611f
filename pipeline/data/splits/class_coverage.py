"""Move as few units as needed so that each class is in enough parts of the data.

A unit (a group, copies of an image, or a single image) lies in one part (a split, or a fold) and
may hold several classes, so moving it for one class can take another class out of a part. This is
the colouring of a hypergraph, which is hard in the worst case and easy for almost all data: the
search repairs the assignment that it is given, depth first. A class that is in too few parts gets
one of its units there, which then stays; every way is tried, the most promising first. So an
assignment that exists is found and the absence of one is proven, unless the search reaches its
limit.

Nothing is random: the same units in the same order give the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import NamedTuple

_FIRST_LIMIT = 2_000
"""How many moves a search considers at first: enough unless groups and classes are entangled."""
_LIMIT = 50_000
"""How many it considers at most: about a second."""
_WALK, _NOISE = 100_000, 0.2
"""Steps of a walk and the share of random ones; it finds what a search does not reach."""
_MOST_PARTS = 5
"""Whether the units of a class suffice is checked exactly up to this many missing parts."""


class Demand(NamedTuple):
    """What a class needs: to be in at least `at_least` of the `parts`."""

    parts: tuple[int, ...]
    at_least: int


@dataclass(frozen=True)
class Units:
    """The units of some classes and where they may lie.

    Args:
        members: for each class, its movable units, the one to move first in front.
        held: for each class, the parts where it is in any case, by units that cannot move.
        last: parts for which the last unit of a class moves first.
    """

    members: Sequence[Sequence[int]]
    held: Sequence[frozenset[int]]
    last: frozenset[int] = frozenset()


@dataclass
class _Step:
    """A class that lacks a part, the moves that may give it one, and what was done so far."""

    options: list[tuple[int, int]]
    next: int = 0
    moved: tuple[int, int] | None = None
    """The unit that was moved, and the part that it came from."""
    excluded: list[tuple[int, int]] = field(default_factory=list)


class Search:
    """Repairs an assignment of units to parts.

    Args:
        units: to assign.
        demands: one for each class.
        start: the part of each unit, by its number.
    """

    def __init__(self, units: Units, demands: Sequence[Demand], start: dict[int, int]) -> None:
        self.units, self.demands = units, demands
        self._left = 0
        self.parts = dict(start)
        self._start = start
        everywhere = frozenset(part for demand in demands for part in demand.parts)
        self._domains = dict.fromkeys(start, everywhere)
        self._everywhere = everywhere
        self._narrowed: set[int] = set()
        self._locked: set[int] = set()
        self._classes: dict[int, list[int]] = {}
        counts: list[dict[int, int]] = []
        for number, (members, held) in enumerate(zip(units.members, units.held, strict=True)):
            counts.append(dict.fromkeys(held, len(start) + 1))
            for unit in members:
                self._classes.setdefault(unit, []).append(number)
                counts[-1][start[unit]] = counts[-1].get(start[unit], 0) + 1
        self._counts = counts
        self._locked_in: list[set[int]] = [set() for _ in demands]
        self._lacking = {number for number in range(len(demands)) if self._lacks(number)}

    def solve(self, *, thorough: bool = True) -> bool | None:
        """Move units until every demand is met.

        Args:
            thorough: continue where the first few thousand moves leave it open.

        Returns:
            True if that is so; False if no assignment meets them; None if the limit was reached.
            The units are where they were unless it is true.
        """
        if not all(self._is_possible(number) for number in range(len(self.demands))):
            return False
        solution = self._searched(_FIRST_LIMIT)
        if solution is None and thorough and not (solution := self._walked(_WALK) or None):
            solution = self._searched(_LIMIT)
        if solution:
            self._bring_back()
        return solution

    def _searched(self, limit: int) -> bool | None:
        """Try every way, depth first."""
        self._left = limit
        steps: list[_Step] = []
        while self._lacking:
            steps.append(self._step())
            while not self._advanced(steps[-1]):
                self._undo(steps.pop())
                if not steps:
                    return None if self._left < 0 else False
        return True

    def _walked(self, steps: int) -> bool:
        """Give lacking classes a part, one after another, sometimes at random (WalkSAT)."""
        random = Random(0)  # noqa: S311 - the same choices each time, and no secret
        waiting = deque(sorted(self._lacking))
        for _ in range(steps):
            while waiting and waiting[0] not in self._lacking:
                waiting.popleft()
            if not waiting:
                return True
            number = waiting[0]
            counts, demand = self._counts[number], self.demands[number]
            missing = [part for part in demand.parts if not counts.get(part)]
            part = missing[int(random.random() * len(missing))]
            members = self.units.members[number]
            first = int(random.random() * len(members))
            unit = members[first]
            if random.random() >= _NOISE:
                unit = min((*members[first:], *members[:first]), key=self._losses)
            self._move(unit, part)
            waiting.rotate(-1)
            waiting.extend(each for each in self._classes[unit] if each in self._lacking)
        for unit, part in self._start.items():
            if self.parts[unit] != part:
                self._move(unit, part)
        return False

    def _bring_back(self) -> None:
        """Return units to where they started if that leaves every demand met."""
        for unit in sorted(unit for unit, part in self._start.items() if self.parts[unit] != part):
            here = self.parts[unit]
            self._move(unit, self._start[unit])
            if self._lacking:
                self._move(unit, here)

    def _step(self) -> _Step:
        """Choose the class with the least choice, and order its moves."""
        number = min(self._lacking, key=lambda each: (self._slack(each), each))
        missing = [
            part for part in self.demands[number].parts if not self._counts[number].get(part)
        ]
        if self.demands[number].at_least == len(self.demands[number].parts):
            missing = missing[:1]  # it needs all of them, so the order does not matter
        ordered: list[tuple[int, int, int, tuple[int, int]]] = []
        members = self.units.members[number]
        for place, part in enumerate(missing):
            for rank, unit in enumerate(members[::-1] if part in self.units.last else members):
                if unit not in self._locked and part in self._domains[unit]:
                    ordered.append((self._losses(unit), place, rank, (unit, part)))
        self._left -= max(1, len(members) * len(missing))
        return _Step([option for *_, option in sorted(ordered)])

    def _advanced(self, step: _Step) -> bool:
        """Take back the last move of a step and make its next one that may lead to an end."""
        while True:
            if step.moved is not None:
                unit, before = step.moved
                tried = self.parts[unit]
                self._release(unit, before)
                step.moved = None
                step.excluded.append((unit, tried))  # it was no way, so the unit lies elsewhere
                self._narrow(unit, self._domains[unit] - {tried})
                if not all(map(self._is_possible, self._classes[unit])):
                    return False
            if step.next == len(step.options) or self._left < 0:
                return False
            unit, part = step.options[step.next]
            step.next += 1
            self._left -= 1
            step.moved = (unit, self.parts[unit])
            self._move(unit, part)
            self._lock(unit)
            if all(map(self._is_possible, self._classes[unit])):
                return True

    def _undo(self, step: _Step) -> None:
        if step.moved is not None:
            unit, before = step.moved
            self._release(unit, before)
        for unit, part in step.excluded:
            self._narrow(unit, self._domains[unit] | {part})

    def _lock(self, unit: int) -> None:
        self._locked.add(unit)
        for number in self._classes[unit]:
            self._locked_in[number].add(unit)

    def _release(self, unit: int, before: int) -> None:
        self._locked.discard(unit)
        for number in self._classes[unit]:
            self._locked_in[number].discard(unit)
        self._move(unit, before)

    def _narrow(self, unit: int, domain: frozenset[int]) -> None:
        self._domains[unit] = domain
        (self._narrowed.discard if domain == self._everywhere else self._narrowed.add)(unit)

    def _move(self, unit: int, part: int) -> None:
        before, self.parts[unit] = self.parts[unit], part
        for number in self._classes[unit]:
            counts = self._counts[number]
            counts[before] -= 1
            counts[part] = counts.get(part, 0) + 1
            (self._lacking.add if self._lacks(number) else self._lacking.discard)(number)

    def _lacks(self, number: int) -> bool:
        counts, demand = self._counts[number], self.demands[number]
        return sum(counts.get(part, 0) > 0 for part in demand.parts) < demand.at_least

    def _losses(self, unit: int) -> int:
        """Return how many classes would lack a part without this unit where it is."""
        part, losses = self.parts[unit], 0
        for number in self._classes[unit]:
            counts, demand = self._counts[number], self.demands[number]
            if counts[part] == 1 and part in demand.parts:
                there = sum(counts.get(each, 0) > 0 for each in demand.parts)
                losses += there <= demand.at_least
        return losses

    def _secure(self, number: int) -> set[int]:
        """Return the parts where a class stays: by what cannot move, or has been moved."""
        locked = {self.parts[unit] for unit in self._locked_in[number]}
        return (locked | self.units.held[number]) & set(self.demands[number].parts)

    def _slack(self, number: int) -> int:
        """Return how many units of a class are free beyond those that its parts need."""
        free = len(self.units.members[number]) - len(self._locked_in[number])
        return free - (self.demands[number].at_least - len(self._secure(number)))

    def _is_possible(self, number: int) -> bool:
        """Return whether the free units of a class can still meet its demand (Hall's condition)."""
        demand, secure = self.demands[number], self._secure(number)
        needed = demand.at_least - len(secure)
        members, locked = self.units.members[number], self._locked_in[number]
        narrowed = [unit for unit in self._narrowed if number in self._classes[unit]]
        if len(members) - len(locked) - len(narrowed) >= needed:
            return True  # units that may go anywhere
        free = [self._domains[unit] for unit in members if unit not in locked]
        self._left -= 1
        if len(free) < needed:
            return False
        missing = [part for part in demand.parts if part not in secure]
        if needed < len(missing) or needed > _MOST_PARTS:
            return True  # perhaps: the search will tell
        return all(
            sum(not domain.isdisjoint(some) for domain in free) >= size
            for size in range(1, needed + 1)
            for some in combinations(missing, size)
        )
