"""Batches that are loaded one ahead, in a thread, while a GPU computes the one before.

Reading a batch from the store, copying it and pinning its memory release Python's lock, so that the
thread that starts the kernels does not wait for them. The batches and their order stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from typing import TypeVar

import torch

Loaded = TypeVar("Loaded")


def endless() -> float:
    """Return the number of batches that are needed where it is not known: any number."""
    return math.inf


def one_ahead(
    batches: Iterator[Loaded], device: torch.device, needed: Callable[[], float] = endless
) -> Iterator[Loaded]:
    """Yield batches, each of which is loaded while the one before it is used.

    What fails is raised when its batch is asked for. Closing the iterator waits for the batch that
    is being loaded.

    Args:
        batches: loads a batch with each `next`, always in the same thread.
        device: where the batches are needed, to which their pinned memory belongs.
        needed: returns how many batches are needed, as far as it is known; no other is loaded
            ahead.
    """

    def load() -> Loaded | None:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return next(batches, None)

    with ThreadPoolExecutor(1, "next-batch") as thread:
        coming = thread.submit(load)
        for number in count(1):
            batch = coming.result()
            if batch is None:
                return
            is_ahead = number < needed()
            if is_ahead:
                coming = thread.submit(load)
            yield batch
            if not is_ahead:
                coming = thread.submit(load)
