"""A queue of images that takes turns between requests, so that a large one delays nobody else."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Waiting items in groups; `take` takes one of each group in turn. Safe for several threads."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return self._count

    def is_full_for(self, group: Hashable, most: int) -> bool:
        """Return whether so many other groups wait already."""
        with self._changed:
            return group not in self._groups and len(self._groups) >= most

    def put(self, group: Hashable, items: Iterable[Item]) -> None:
        """Add items behind those of the same group."""
        with self._changed:
            waiting = self._groups.setdefault(group, deque())
            before = len(waiting)
            waiting.extend(items)
            added = len(waiting) - before
            if not waiting:
                del self._groups[group]
            self._count += added
            if added:
                self._changed.notify(added)

    def take(self, most: int, takers: int = 1) -> list[Item]:
        """Wait for items, and return some of them; none once the queue is closed and empty.

        Args:
            most: number of items to take.
            takers: number of threads among which the waiting items are divided.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._closed)
            number = min(most, -(-self._count // takers))
            return [self._next() for _ in range(number)]

    def close(self) -> None:
        """Let `take` return nothing once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> Item:
        group, waiting = self._groups.popitem(last=False)
        item = waiting.popleft()
        if waiting:
            self._groups[group] = waiting
        self._count -= 1
        return item
