"""Batches of images, or of stored tokens, in an order that depends only on (seed, epoch).

A batch is loaded one ahead, in a thread, while a GPU computes the one before. Reading a batch from
the store, copying it and pinning its memory release Python's lock, so that the thread that starts
the kernels does not wait for them. The batches and their order stay the same.

Shapes: B images of a batch, M images with tokens, V views of each, N tokens, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.data.batches.batch_order import row_of
from patchline.pipeline.data.store.opened_images import open_stores
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

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
        device: the device that uses the batches; pinned memory belongs to it.
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


Batch = tuple[torch.Tensor, torch.Tensor]
"""uint8 images (B, H, W, C), or float16 tokens (B, N, D), and their targets: class indices (B), or
probabilities (B, K), or sets of labels as 0 and 1 (B, K)."""


class Targets(Protocol):
    """What is to be learned from each row of the store: a class index, or K targets."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        """Return the targets of some rows: int64 (n), or float32 (n, K)."""


class SetTargets:
    """Sets of labels as targets: small in memory, float32 in a batch.

    Args:
        sets_NK: 1 where an image has a label, otherwise 0, uint8.
    """

    def __init__(self, sets_NK: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._sets_NK = sets_NK

    def __len__(self) -> int:
        return len(self._sets_NK)

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        targets_nK: np.ndarray[Any, Any] = self._sets_NK[rows].astype(np.float32)
        return targets_nK


class _LoadedBatch(NamedTuple):
    """What a data-loader worker returns; the batched part of the augmentation follows."""

    images_BHWC: torch.Tensor
    targets: torch.Tensor
    epoch: int
    draws_B: torch.Tensor


@dataclass(frozen=True)
class TrainingImages:
    """The training split of a store, and how it is augmented."""

    store: Path
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Rows of the store that belong to the split."""
    targets: Targets
    """The targets of every row of the store."""
    augmentation: PluginChoice
    image: ImageSpec
    seed: int
    more_stores: tuple[Path, ...] = ()
    """Stores whose rows follow those of the first."""
    pages: Path | None = None
    """The folder with images of streamed stores on this machine, if there is one."""
    in_memory: StoredImages | None = None
    """The images themselves, if they are in no store."""

    @property
    def stores(self) -> tuple[Path, ...]:
        """All stores, in the order of their rows."""
        return (self.store, *self.more_stores)

    def augment(self) -> SeededAugmentation:
        """Build the augmentation."""
        return SeededAugmentation(self.augmentation, self.image, self.seed)


class _StoredImages(Dataset[_LoadedBatch]):
    """Fetch whole batches of (epoch, draw) pairs; the store is opened lazily in each worker."""

    def __init__(self, source: TrainingImages) -> None:
        self.source = source
        self._images: StoredImages | None = None
        self._augment: SeededAugmentation | None = None

    def __getitems__(self, keys: list[tuple[int, int]]) -> _LoadedBatch:
        source = self.source
        if self._images is None or self._augment is None:
            import cv2

            cv2.setNumThreads(0)  # the workers are the parallelism
            images = source.in_memory
            if images is None:
                threads = 1 if get_worker_info() else None
                images = open_stores(source.stores, threads, source.pages)
            self._images = np.asarray(images) if isinstance(images, np.ndarray) else images
            self._augment = source.augment()
        epoch = keys[0][0]
        draws_B = np.array([draw for _, draw in keys], np.int64)
        rows_B = row_of(draws_B, len(source.targets))
        images_BHWC = self._augment.by_image(self._images[rows_B], epoch, draws_B.tolist())
        return _LoadedBatch(
            torch.from_numpy(images_BHWC),
            torch.from_numpy(source.targets[rows_B]),
            epoch,
            torch.from_numpy(draws_B),
        )

    def __getitem__(self, key: tuple[int, int]) -> _LoadedBatch:
        return self.__getitems__([key])


def training_batches(
    order: Iterable[list[tuple[int, int]]],
    source: TrainingImages,
    workers: int,
    device: torch.device | None = None,
    needed: Callable[[], float] = endless,
    *,
    ahead: bool | None = None,
) -> Iterator[Batch]:
    """Yield the batches of the training split endlessly, starting at the order's first step.

    Args:
        order: yields the images of each batch as (epoch, draw); see `batch_order`.
        source: the images and their augmentation.
        workers: number of data-loader workers; 0 loads in this process.
        device: the device that gets the batches, and on which whole batches are augmented; by
            default the CPU.
        needed: returns how many batches are needed, as far as it is known.
        ahead: whether a thread loads the next batch if there are no workers; by default for a GPU.
    """
    device = device or torch.device("cpu")
    loader: DataLoader[_LoadedBatch] = DataLoader(
        _StoredImages(source),
        batch_sampler=order,
        num_workers=workers,
        collate_fn=_whole_batch,
        multiprocessing_context="spawn" if workers else None,
        pin_memory=device.type == "cuda",
    )
    loaded: Iterator[_LoadedBatch] = iter(loader)
    if not workers and (device.type == "cuda" if ahead is None else ahead):
        loaded = one_ahead(loaded, device, needed)
    return _augment_batches(loaded, source.augment(), device)


def _augment_batches(
    batches: Iterator[_LoadedBatch], augmentation: SeededAugmentation, device: torch.device
) -> Iterator[Batch]:
    """Yield the batches on the device, with the batched part of the augmentation applied."""
    for batch in batches:
        images_BHWC, targets, draws_B = (
            tensor.to(device, non_blocking=True)
            for tensor in (batch.images_BHWC, batch.targets, batch.draws_B)
        )
        yield augmentation.by_batch(images_BHWC, batch.epoch, draws_B), targets


def _whole_batch(batch: Any) -> _LoadedBatch:
    whole: _LoadedBatch = batch  # `__getitems__` has stacked it
    return whole


Array = np.ndarray[Any, Any]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TokenImages:
    """The tokens of images as a model takes them for a prediction, by the rows of the store.

    Attributes:
        tokens_MVND: float16, mapped from disk; the first view is the image itself, the second its
            mirror image if `mirrored`.
        rows: rows of the store whose tokens these are, increasing.
        stored: number of rows of the store.
        mirrored: whether a prediction takes an image together with its mirror image.
    """

    tokens_MVND: Array
    rows: Rows
    stored: int
    mirrored: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As of images: the rows of the store, and what each holds."""
        own = self.tokens_MVND.shape[2:]
        return (self.stored, 2, *own) if self.mirrored else (self.stored, *own)

    def __len__(self) -> int:
        return self.stored

    def __getitem__(self, rows: Any) -> Array:
        positions = self.positions(rows)
        return self.tokens_MVND[positions, :2] if self.mirrored else self.tokens_MVND[positions, 0]

    def positions(self, rows: Any) -> Rows:
        """Return where the tokens of some rows are.

        Raises:
            IndexError: if a row has no tokens, such as that of a test image.
        """
        numbers_N = np.asarray(rows)
        positions = np.minimum(np.searchsorted(self.rows, numbers_N), len(self.rows) - 1)
        if not np.array_equal(self.rows[positions], numbers_N):
            raise IndexError("no tokens are stored for some of these rows")
        return positions


@dataclass(frozen=True)
class TrainingTokens:
    """The images to train on, as the tokens of their views.

    In each epoch an image is shown in another view, until all have been shown. Which is the first
    depends on (seed, image) alone.
    """

    images: TokenImages
    targets: Targets
    """The targets of every row of the store."""
    seed: int

    def batches(
        self,
        order: Iterable[list[tuple[int, int]]],
        device: torch.device,
        needed: Callable[[], float] = endless,
        *,
        ahead: bool | None = None,
    ) -> Iterator[Batch]:
        """Yield batches of float16 tokens (B, N, D) and targets endlessly.

        Args:
            order: yields the images of each batch as (epoch, draw); see `batch_order`.
            device: the device that gets the batches.
            needed: returns how many batches are needed, as far as it is known.
            ahead: whether a thread loads the next batch; by default for a GPU.
        """
        loaded = self._loaded(order, pinned=device.type == "cuda")
        if device.type == "cuda" if ahead is None else ahead:
            loaded = one_ahead(loaded, device, needed)
        for batch_BND, targets in loaded:
            moved_BND = batch_BND.to(device, non_blocking=True)
            yield moved_BND, targets.to(device, non_blocking=True)

    def _loaded(self, order: Iterable[list[tuple[int, int]]], *, pinned: bool) -> Iterator[Batch]:
        tokens_MVND, stored = self.images.tokens_MVND, self.images.stored
        views = tokens_MVND.shape[1]
        first = np.random.default_rng(self.seed).integers(0, views, stored)
        for keys in order:
            epochs, draws = np.array(keys).T
            rows = row_of(draws, stored)
            shown = (first[rows] + epochs + draws // stored) % views
            batch_BND = torch.from_numpy(tokens_MVND[self.images.positions(rows), shown])
            targets = torch.from_numpy(self.targets[rows])
            yield (batch_BND.pin_memory(), targets.pin_memory()) if pinned else (batch_BND, targets)
