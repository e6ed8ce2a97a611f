"""What a network computes for each image, such as features or tokens: once, in pieces, on disk.

A kill loses the piece that is being computed. Several processes compute batches in turn, and the
first of them stores them.

Shapes: N images, B images of a batch; the value of an image has any shape.
"""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import Transfers, compute_fitting_batches
from patchline.pipeline.models.probing.linear_head import use_evaluation_mode
from patchline.pipeline.workspace.files.file_locks import hold_lock, try_lock
from patchline.pipeline.workspace.files.resumable_work import (
    EarlierResult,
    EarlierRows,
    ResumableArray,
)
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.pipeline.workspace.workspace import workspace_of
from patchline.plugin_api import ImageSpec

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Rows = np.ndarray[Any, np.dtype[np.int64]]
Batch = list[torch.Tensor]
"""The values of its images, in order; whole once the device has finished."""
Progress = Callable[[int, int], None]
"""Called with the number of finished images and the number of all images."""

PIECE_SECONDS, _PIECE_BYTES = 2.0, 2**28
"""How long to compute, and how much, before the results are stored; a kill loses no more."""
_TRIAL_IMAGES, _TRIAL_SECONDS = 4, 0.25
_HEARD_SECONDS = 20.0
"""How often the other processes of a group hear from the first one while it waits."""


class BatchGroup(Protocol):
    """Processes that compute batches together, as one of them sees it.

    Attributes:
        rank: the number of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all processes to the first one, and nothing to the others."""

    def numbers_of_first(self, *numbers: float) -> list[float]:
        """Return the numbers of the first process to all of them."""


@dataclass(frozen=True)
class StoredRows(ABC):
    """What a network computes for some images, on disk.

    Attributes:
        model: the network, on its device.
        images: all images, uint8 (N, H, W, C).
        rows: the images to compute, in this order.
        image: how the model's images are normalised.
        folder: the folder that holds the values of this model, its weights, and these images.
        device: the device of the model.
        precision: the precision of the computation: float32, bfloat16 or float16.
        batch_size: the number of images that are computed together.
        contents: digest of what each row holds, such as its file's; with these, what `_earlier`
            yields is not computed again.
        group: all processes whose stores are the same and compute together: the first one stores
            the values; None for a process alone.
    """

    what: ClassVar[str]
    """The values are, for a message: "features"."""
    model: nn.Module
    images: StoredImages
    rows: Rows
    image: ImageSpec
    folder: Path
    device: torch.device
    precision: str
    batch_size: int
    _: KW_ONLY
    contents: tuple[str, ...] = ()
    group: BatchGroup | None = None

    @abstractmethod
    def array(self) -> ResumableArray:
        """Return the array on disk, with a row for each image."""

    @abstractmethod
    def _of_rows(self, rows: Rows) -> torch.Tensor:
        """Return the values of some images on the host, whole once the device has finished."""

    def remaining(self) -> int:
        """Return the number of images whose values are not stored yet, or are damaged."""
        array = self.array()
        workspace_of(array.file).fetch_array(array.file)
        finished = array.rows_in(array.finished.intact())
        copies = sum(1 for _ in self._stored_elsewhere(finished).copies(self.contents))
        return int(len(finished) - finished.sum()) - copies

    def seconds_per_image(self) -> float:
        """Measure on the first images how long one takes."""

        def compute(rows: Rows) -> None:
            self._finish([[self._of_rows(rows)]])

        with use_evaluation_mode(self.model):
            return seconds_per_image(compute, self.rows, self.batch_size)

    def _complete(self, on_progress: Progress | None) -> ResumableArray:
        """Compute what is not stored yet, and return the array.

        If another process is computing the same, wait for it. In a group, all processes call this
        together, and all but the first one compute their share of what the first one lacks.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        array = self.array()
        if self.group and self.group.rank:
            _wait_for_lock(self.group)
            with use_evaluation_mode(self.model):
                for _ in self._batches(
                    array, _agree_on_starts(self.group, []), EarlierRows((), ())
                ):
                    pass
            return array
        workspace = workspace_of(array.file)
        with (
            _hold_lock_for(self.group, array.file.with_suffix(".lock"), self._on_wait),
            use_evaluation_mode(self.model),
        ):
            workspace.fetch_array(array.file)
            finished = array.resume()
            starts = range(0, len(self.rows), self.batch_size)
            missing = [each for each in starts if not finished[each : each + self.batch_size].all()]
            batches = self._batches(
                array, _agree_on_starts(self.group, missing), self._stored_elsewhere(finished)
            )
            done = int(finished.sum())
            if on_progress and done:
                on_progress(done, len(self.rows))
            for start, values in self._pieces(batches, done, on_progress):
                array.write(start, values)
            workspace.send_array(array.file)
        return array

    def _earlier(self) -> Iterable[EarlierResult]:
        """Yield other stores that may hold the values of these contents."""
        return ()

    def _stored_elsewhere(self, finished: np.ndarray[Any, np.dtype[np.bool_]]) -> EarlierRows:
        """Return the rows of other stores that are not finished in this one."""
        missing = itertools.compress(self.contents, ~finished)
        return EarlierRows(self._earlier(), missing)

    def _pieces(
        self, computed: Iterator[tuple[int, Batch]], done: int, on_progress: Progress | None
    ) -> Iterator[tuple[int, Array]]:
        """Yield values of consecutive batches together with the position of their first image."""
        batches: list[Batch] = []
        size = first = stop = 0
        began = time.monotonic()
        for start, batch in computed:
            late = time.monotonic() - began >= PIECE_SECONDS
            if batches and (late or size >= _PIECE_BYTES or start != stop):
                yield first, self._finish(batches)
                batches, size, began = [], 0, time.monotonic()
            if not batches:
                first = start
            batches.append(batch)
            size += sum(part.nbytes for part in batches[-1])
            images = sum(len(part) for part in batches[-1])
            stop, done = start + images, done + images
            if on_progress:
                on_progress(min(done, len(self.rows)), len(self.rows))
        if batches:
            yield first, self._finish(batches)

    def _batches(
        self, array: ResumableArray, starts: list[int], stored: EarlierRows
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the start of each batch, and its values; in a group, compute them in turn."""
        if self.group is None:
            for start in starts:
                yield start, self._of_batch(array, start, stored)
            return

        def compute(start: int) -> torch.Tensor:
            return torch.from_numpy(self._finish([self._of_batch(array, start, stored)]))

        like = torch.from_numpy(np.empty((self.batch_size, *array.shape[1:]), array.dtype))
        for start, batch in _compute_in_turn(self.group, starts, like, compute):
            yield start, [batch[: len(self.rows) - start]]

    def _finish(self, batches: list[Batch]) -> Array:
        """Wait for the values of some batches, and return them together."""
        self._transfers.wait()
        return np.concatenate([part.numpy() for parts in batches for part in parts])

    @cached_property
    def _transfers(self) -> Transfers:
        return Transfers(self.device)

    def _of_batch(self, array: ResumableArray, start: int, stored: EarlierRows) -> Batch:
        """Return the values of the batch that begins at a position: stored ones, or computed.

        The device may still compute them, while the images of the next batch are read.
        """
        rows = self.rows[start : start + self.batch_size]
        copies = dict(stored.copies(self.contents[start : start + self.batch_size]))
        if not copies:
            return self._computed(rows)
        values = np.empty((len(rows), *array.shape[1:]), array.dtype)
        new = np.delete(np.arange(len(rows)), list(copies))
        if len(new):
            values[new] = self._finish([self._computed(rows[new])])
        for place, value in copies.items():
            values[place] = value
        return [torch.from_numpy(values)]

    def _computed(self, rows: Rows) -> Batch:
        """Return the values of a batch; it is divided if the device runs out of memory."""
        parts = compute_fitting_batches(
            len(rows), len(rows), lambda part: self._of_rows(rows[part])
        )
        return [values for _, values in parts]

    def _on_wait(self) -> None:
        logger.warning(
            "Another process is computing the same %s; waiting until it ends.", self.what
        )


def seconds_per_image(compute: Callable[[Rows], object], rows: Rows, largest: int) -> float:
    """Measure on the first rows how long one takes.

    Times two batches after a warm-up. They are small for a slow model, and grow up to the batch
    size of the computation as long as a batch takes less than a quarter of a second.

    Args:
        compute: returns when the device has finished some rows.
        rows: the rows that batches are taken from.
        largest: the number of images in the largest batch.
    """
    if not len(rows):
        return 0.0
    largest = min(largest, len(rows))
    size = min(_TRIAL_IMAGES, largest)

    def seconds() -> float:
        began = time.perf_counter()
        compute(rows[:size])
        return time.perf_counter() - began

    seconds()
    while (taken := seconds()) < _TRIAL_SECONDS and size < largest:
        size = min(4 * size, largest)
        seconds()
    return (taken + seconds()) / (2 * size)


@contextmanager
def _hold_lock_for(
    group: BatchGroup | None, file: Path, on_wait: Callable[[], None]
) -> Iterator[None]:
    """Hold a lock; the first process of a group waits for the whole group.

    The others, in `_wait_for_lock`, hear from it all the time. Otherwise they would take it for
    stopped if another run computes the same for longer than a group waits for a process.
    """
    if group is None:
        with hold_lock(file, on_wait):
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


def _wait_for_lock(group: BatchGroup) -> None:
    """Wait until the first process of a group holds the lock, in the others."""
    while not all(group.numbers_of_first(0)):
        pass


def _agree_on_starts(group: BatchGroup | None, starts: list[int]) -> list[int]:
    """Return the starts of batches that the first process of a group passes, to all of it."""
    if group is None:
        return starts
    [count] = group.numbers_of_first(len(starts))
    own = starts or [0] * int(count)
    return [int(start) for start in group.numbers_of_first(*own)]


def _compute_in_turn(
    group: BatchGroup,
    starts: Sequence[int],
    like: torch.Tensor,
    compute: Callable[[int], torch.Tensor],
) -> Iterator[tuple[int, torch.Tensor]]:
    """Compute whole batches in turn, and yield all of them in the first process of a group.

    All processes go through the batches together.

    Args:
        group: the processes.
        starts: the position at which each batch begins, the same in all processes.
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
