"""Batches in an order that depends only on (seed, epoch), whatever the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pipeline.config import PluginChoice
from pipeline.data.augmentation import SeededAugmentation
from pipeline.data.prepared_store import Pixels, open_images
from pipeline.plugin_api import ImageSpec

Batch = tuple[torch.Tensor, torch.Tensor]
"""uint8 images (B, H, W, C) and integer labels (B)."""


@dataclass(frozen=True)
class TrainingImages:
    """The training split of a store, and how it is augmented."""

    store: Path
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Rows of the store that belong to the split."""
    labels: np.ndarray[Any, np.dtype[np.int64]]
    """Class index of every row of the store."""
    augmentation: PluginChoice
    image: ImageSpec
    seed: int


class _AugmentedDataset(Dataset[Batch]):
    """Fetch whole batches of (epoch, row) pairs; the store is opened lazily in each worker."""

    def __init__(self, source: TrainingImages) -> None:
        self.source = source
        self._images: Pixels | None = None
        self._augment: SeededAugmentation | None = None

    def __getitems__(self, keys: list[tuple[int, int]]) -> Batch:
        source = self.source
        if self._images is None or self._augment is None:
            import cv2

            cv2.setNumThreads(0)  # the workers are the parallelism
            self._images = open_images(source.store)
            self._augment = SeededAugmentation(source.augmentation, source.image, source.seed)
        augmented = [self._augment(np.array(self._images[row]), epoch, row) for epoch, row in keys]
        labels = source.labels[[row for _, row in keys]]
        return torch.from_numpy(np.stack(augmented)), torch.from_numpy(labels)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        return self.__getitems__([key])


class BatchOrder:
    """Yield batches of (epoch, row) endlessly, from any step; the last of an epoch is smaller.

    A single image left over joins the previous batch, because batch norm needs at least two.
    """

    def __init__(
        self, rows: np.ndarray[Any, np.dtype[np.int64]], batch_size: int, seed: int, first_step: int
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.first_step = first_step
        whole, left_over = divmod(len(rows), batch_size)
        joined = left_over == 1 and batch_size > 1
        self.steps_per_epoch = max(1, whole + (left_over > 0 and not joined))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, skipped = divmod(self.first_step, self.steps_per_epoch)
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
            for batch in range(skipped, self.steps_per_epoch):
                last = batch + 1 == self.steps_per_epoch
                end = len(order) if last else (batch + 1) * self.batch_size
                chosen = order[batch * self.batch_size : end]
                yield [(epoch, int(row)) for row in chosen]
            epoch, skipped = epoch + 1, 0


def training_batches(order: BatchOrder, source: TrainingImages, workers: int) -> Iterator[Batch]:
    """Return the endless batches of the training split, starting at the order's first step."""
    loader: DataLoader[Batch] = DataLoader(
        _AugmentedDataset(source),
        batch_sampler=order,
        num_workers=workers,
        collate_fn=_whole_batch,
        multiprocessing_context="spawn" if workers else None,
    )
    return iter(loader)


def _whole_batch(batch: Any) -> Batch:
    whole: Batch = batch  # `__getitems__` has stacked it
    return whole
