"""Batches that several processes compute in turn, and the first of them stores.

Shapes: B images of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from patchline.pipeline.workspace.files.file_locks import locked, try_lock

_HEARD_SECONDS = 20.0
"""How often the other processes of a group hear from the first one while it waits."""


class BatchGroup(Protocol):
    """Processes that compute batches together, as one of them sees it.

    Attributes:
        rank: of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all processes to the first one, and nothing to the others."""

    def numbers_of_first(self, *numbers: float) -> list[float]:
        """Return the numbers of the first process to all of them."""


@contextmanager
def locked_for(group: BatchGroup | None, file: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock; the first process of a group waits for the whole group.

    The others, in `wait_for_lock`, hear from it all the time. Otherwise they would take it for
    stopped if another run computes the same for longer than a group waits for a process.
    """
    if group is None:
        with locked(file, on_wait):
            yield
        return
    for attempt in itertools.count():
        with try_lock(file, _HEARD_SECONDS if attempt else 0.0) as is_held:
            group.numbers_of_first(is_held)
            if is_held:
                yield
                return
        if not attempt:
            on_wait()


def wait_for_lock(group: BatchGroup) -> None:
    """Wait until the first process of a group holds the lock, in the others."""
    while not all(group.numbers_of_first(0)):
        pass


def agreed(group: BatchGroup | None, starts: list[int]) -> list[int]:
    """Return the starts of batches that the first process of a group passes, to all of it."""
    if group is None:
        return starts
    [count] = group.numbers_of_first(len(starts))
    own = starts or [0] * int(count)
    return [int(start) for start in group.numbers_of_first(*own)]


def computed_in_turn(
    group: BatchGroup,
    starts: Sequence[int],
    like: torch.Tensor,
    compute: Callable[[int], torch.Tensor],
) -> Iterator[tuple[int, torch.Tensor]]:
    """Compute whole batches in turn, and yield all of them in the first process of a group.

    All processes go through the batches together.

    Args:
        group: the processes.
        starts: of the batches, the same in all of them.
        like: a batch of full size, (B, ...).
        compute: returns the batch that begins at a position; the last one may be smaller.
    """
    for first in range(0, len(starts), group.size):
        turn = starts[first : first + group.size]
        own = torch.zeros_like(like)
        if group.rank < len(turn):
            computed = compute(turn[group.rank])
            own[: len(computed)] = computed
        yield from zip(turn, group.gathered(own), strict=False)
