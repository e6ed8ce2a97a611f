"""Batches of images, or of stored tokens, in an order that depends only on (seed, epoch).

Two batches are loaded ahead, in a thread, while a GPU computes the one before. Reading a batch from
the store, copying it and pinning its memory release Python's lock, so that the thread that starts
the kernels does not wait for them. The batches and their order stay the same, and so do they where
the GPU keeps the images (`device_images`).

Shapes: B images of a batch, M images with tokens, V views of each, N tokens, D embedding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from patchline.pipeline.data.batches.device_images import (
    CopiedBatch,
    KeptImages,
    KeptRows,
    LoadedBatch,
    copy_batches,
    fits_device,
    read_free_bytes,
)
from patchline.pipeline.data.store.opened_images import open_stores
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

Loaded = TypeVar("Loaded")


def endless() -> float:
    """Return the number of batches that are needed where it is not known: any number."""
    return math.inf


def load_ahead(
    batches: Iterator[Loaded],
    device: torch.device,
    needed: Callable[[], float] = endless,
    ahead: int = 1,
) -> Iterator[Loaded]:
    """Yield batches, each of which is loaded while those before it are used.

    What fails is raised when its batch is asked for. Closing the iterator waits for the batch that
    is being loaded.

    Args:
        batches: loads a batch with each `next`, always in the same thread.
        device: the device that uses the batches; pinned memory belongs to it.
        needed: returns how many batches are needed, as far as it is known; no other is loaded
            ahead.
        ahead: number of batches to load while one is used.
    """

    def load() -> Loaded | None:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return next(batches, None)

    with ThreadPoolExecutor(1, "next-batch") as thread:
        coming = deque[Future[Loaded | None]]()
        for number in count(1):
            while not coming or (len(coming) <= ahead and number + len(coming) - 1 < needed()):
                coming.append(thread.submit(load))
            batch = coming.popleft().result()
            if batch is None:
                return
            yield batch


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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return self.image.height, self.image.width, self.image.channels

    @property
    def different(self) -> int:
        """Number of different images."""
        return len(np.unique(self.rows))

    def augment(self, *, on_device: bool = False) -> SeededAugmentation:
        """Build the augmentation, which changes single images on the device if it can."""
        return SeededAugmentation(self.augmentation, self.image, self.seed, on_device=on_device)


class Feed(NamedTuple):
    """How batches come to a device."""

    ahead: int = 0
    """Number of batches that a thread loads ahead."""
    augments: bool = False
    """Whether the device changes single images, too, if the augmentation can."""
    keeps: bool = False
    """Whether the device keeps the images."""

    @classmethod
    def of(cls, source: TrainingImages, workers: int, device: torch.device) -> Feed:
        """Return how batches come to a device: to a GPU ahead of their use, if they must be copied.

        Args:
            source: the images and their augmentation.
            workers: number of data-loader workers, which load ahead, too.
            device: the device.
        """
        if device.type != "cuda":
            return cls()
        keeps = False
        is_on_disk = source.in_memory is None and source.pages is None
        if is_on_disk and not source.augment(on_device=True).changes_single_images:
            image_bytes = math.prod(source.shape)
            keeps = fits_device(source.different, image_bytes, read_free_bytes(device))
        return cls(_AHEAD if keeps or not workers else 0, augments=True, keeps=keeps)


_AHEAD = 2


class _StoredImages(Dataset[LoadedBatch]):
    """Fetch whole batches of (epoch, draw) pairs; the store is opened lazily in each worker."""

    def __init__(self, source: TrainingImages, feed: Feed) -> None:
        self.source, self._feed = source, feed
        self._kept = KeptRows(len(source.targets)) if feed.keeps else None
        self._images: StoredImages | None = None
        self._augment: SeededAugmentation | None = None

    def __getitems__(self, keys: list[tuple[int, int]]) -> LoadedBatch:
        source = self.source
        if self._images is None or self._augment is None:
            import cv2

            cv2.setNumThreads(0)  # the workers are the parallelism
            images = source.in_memory
            if images is None:
                threads = 1 if get_worker_info() else None
                images = open_stores(source.stores, threads, source.pages)
            self._images = np.asarray(images) if isinstance(images, np.ndarray) else images
            self._augment = source.augment(on_device=self._feed.augments)
        epoch = keys[0][0]
        draws_B = np.array([draw for _, draw in keys], np.int64)
        rows_B = row_of(draws_B, len(source.targets))
        draws = draws_B.tolist()
        places_B = None
        if self._kept is None:
            images = self._augment.by_image(self._images[rows_B], epoch, draws)
        else:
            images = self._images[self._kept.add(rows_B)]
            places_B = torch.from_numpy(self._kept.places(rows_B))
        return LoadedBatch(
            torch.from_numpy(images),
            torch.from_numpy(source.targets[rows_B]),
            epoch,
            torch.from_numpy(draws_B),
            places_B,
            self._augment.draw(epoch, draws),
        )

    def __getitem__(self, key: tuple[int, int]) -> LoadedBatch:
        return self.__getitems__([key])


def training_batches(
    order: Iterable[list[tuple[int, int]]],
    source: TrainingImages,
    workers: int,
    device: torch.device | None = None,
    needed: Callable[[], float] = endless,
    *,
    feed: Feed | None = None,
) -> Iterator[Batch]:
    """Yield the batches of the training split endlessly, starting at the order's first step.

    Args:
        order: yields the images of each batch as (epoch, draw); see `batch_order`.
        source: the images and their augmentation.
        workers: number of data-loader workers; 0 loads in this process.
        device: the device that gets the batches, and on which whole batches are augmented; by
            default the CPU.
        needed: returns how many batches are needed, as far as it is known.
        feed: how the batches come to the device; by default as `Feed.of` says. A device that keeps
            the images needs no workers.
    """
    device = device or torch.device("cpu")
    feed = feed or Feed.of(source, workers, device)
    workers = 0 if feed.keeps else workers
    loader: DataLoader[LoadedBatch] = DataLoader(
        _StoredImages(source, feed),
        batch_sampler=order,
        num_workers=workers,
        collate_fn=_whole_batch,
        multiprocessing_context="spawn" if workers else None,
        pin_memory=device.type == "cuda",
    )
    copied = copy_batches(iter(loader), device)
    if feed.ahead:
        copied = load_ahead(copied, device, needed, feed.ahead)
    kept = KeptImages(source.different, source.shape, device) if feed.keeps else None
    return _augment_batches(copied, source.augment(on_device=feed.augments), kept)


def _augment_batches(
    batches: Iterator[CopiedBatch], augmentation: SeededAugmentation, kept: KeptImages | None
) -> Iterator[Batch]:
    """Yield the batches on the device, with the batched part of the augmentation applied."""
    for copied in batches:
        images, targets, epoch, draws_B, places_B, drawn = copied.wait()
        if kept is not None and places_B is not None:
            images = kept.take(images, places_B)
        yield augmentation.by_batch(images, epoch, draws_B, drawn), targets


def _whole_batch(batch: Any) -> LoadedBatch:
    whole: LoadedBatch = batch  # `__getitems__` has stacked it
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
            loaded = load_ahead(loaded, device, needed)
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
