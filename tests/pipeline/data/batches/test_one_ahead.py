"""The next batch is loaded in a thread, and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from patchline.pipeline.data.batches.one_ahead import one_ahead
from tests.patience import until

CPU = torch.device("cpu")


def loads(loaded: dict[int, int], end: int = 100) -> Iterator[int]:
    """Yield numbers until the store is gone, and note in which thread each was loaded."""
    for number in range(end):
        loaded[number] = threading.get_ident()
        yield number
    raise OSError("the store is gone")


def own_threads() -> list[threading.Thread]:
    """Return the threads that load batches."""
    return [each for each in threading.enumerate() if each.name.startswith("next-batch")]


def test_next_batch_is_loaded_while_one_is_used() -> None:
    """While the first is used, the second is loaded, the third is not, and in another thread."""
    loaded = dict[int, int]()
    batches = one_ahead(loads(loaded), CPU)
    assert next(batches) == 0
    until(lambda: len(loaded) > 1, "the second is not loaded")
    assert (list(loaded), list(islice(batches, 3))) == ([0, 1], [1, 2, 3])
    assert threading.get_ident() not in loaded.values()


def test_nothing_is_loaded_beyond_what_is_needed() -> None:
    """The last batch that is needed is used alone; if more are needed later, they follow."""
    loaded, needed = dict[int, int](), 2
    batches = one_ahead(loads(loaded), CPU, lambda: needed)
    assert (list(islice(batches, 2)), list(loaded)) == ([0, 1], [0, 1])
    needed = 9
    assert next(batches) == 2


def test_failure_is_raised_at_its_own_batch() -> None:
    """The batches before the one that fails are used first."""
    batches = one_ahead(loads({}, 2), CPU)
    assert list(islice(batches, 2)) == [0, 1]
    with pytest.raises(OSError, match="the store is gone"):
        next(batches)


def test_end_and_early_end_leave_no_thread() -> None:
    """All batches come, and neither their end nor a consumer that stops leaves a thread."""
    assert list(one_ahead(iter(range(3)), CPU)) == [0, 1, 2]
    assert not own_threads()
    batches = one_ahead(loads({}), CPU)
    next(batches)
    assert own_threads()
    del batches
    assert not own_threads()
