"""The next batch is loaded in a thread, and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from patchline.pipeline.data.batches.one_ahead import one_ahead
from tests.patience import patient

CPU = torch.device("cpu")


class Loads:
    """Yields numbers, and tells which were loaded, and in which thread."""

    def __init__(self, end: int = 100, broken: int = -1) -> None:
        self.loaded: list[int] = []
        self.threads = {threading.get_ident()}
        self.changed = threading.Condition()
        self._numbers, self._broken = iter(range(end)), broken

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        number = next(self._numbers)
        if number == self._broken:
            raise OSError("the store is gone")
        with self.changed:
            self.loaded.append(number)
            self.threads.add(threading.get_ident())
            self.changed.notify_all()
        return number


def own_threads() -> list[threading.Thread]:
    """Return the threads that load batches."""
    return [each for each in threading.enumerate() if each.name.startswith("next-batch")]


def test_next_batch_is_loaded_while_one_is_used() -> None:
    """While the first is used, the second is loaded, the third is not, and in another thread."""
    loads = Loads()
    batches = one_ahead(loads, CPU)
    assert next(batches) == 0
    with loads.changed:
        assert loads.changed.wait_for(lambda: len(loads.loaded) == 2, patient(10))
    assert loads.loaded == [0, 1]
    assert list(islice(batches, 3)) == [1, 2, 3]
    assert len(loads.threads) == 2


def test_nothing_is_loaded_beyond_what_is_needed() -> None:
    """The last batch that is needed is used alone; if more are needed later, they follow."""
    loads, needed = Loads(), 2
    batches = one_ahead(loads, CPU, lambda: needed)
    assert list(islice(batches, 2)) == [0, 1]
    assert loads.loaded == [0, 1]
    needed = 9
    assert next(batches) == 2


def test_failure_is_raised_at_its_own_batch() -> None:
    """The batches before the one that fails are used first."""
    batches = one_ahead(Loads(broken=2), CPU)
    assert list(islice(batches, 2)) == [0, 1]
    with pytest.raises(OSError, match="the store is gone"):
        next(batches)


def test_end_and_early_end_leave_no_thread() -> None:
    """All batches come, and neither their end nor a consumer that stops leaves a thread."""
    assert list(one_ahead(Loads(3), CPU)) == [0, 1, 2]
    assert not own_threads()
    batches = one_ahead(Loads(), CPU)
    next(batches)
    assert own_threads()
    del batches
    assert not own_threads()
