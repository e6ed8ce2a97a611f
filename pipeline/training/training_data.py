"""The images and labels of a training run, and the parts of a batch that each rank computes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.batch_order import (
    BalancedOrder,
    BatchOrder,
    ShuffleWindows,
    StreamedOrder,
)
from patchline.pipeline.data.batches.loader import (
    Batch,
    SetTargets,
    Targets,
    TokenImages,
    TrainingImages,
    TrainingTokens,
    endless,
    training_batches,
)
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import units_of
from patchline.pipeline.data.splits import folds
from patchline.pipeline.data.store.opened_images import (
    JoinedImages,
    ReadAhead,
    is_streamed,
    open_stores,
)
from patchline.pipeline.data.store.streamed_images import KeptImages, PagesFolder, StreamedImages
from patchline.pipeline.models.probing.linear_fit import split_into_folds
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.recipe.losses import (
    compute_class_weights,
    positive_weights,
    sentence_on_limited_weights,
)
from patchline.pipeline.training.recipe.soft_targets import (
    UNLABELLED,
    SoftSetTargets,
    soft_targets,
)
from patchline.pipeline.workspace.files.stored_images import StoredImages

if TYPE_CHECKING:
    import pandas as pd

_FEWEST_IMAGES = 2
"""Minimum of a part, because batch norm needs at least two images."""


def micro_batches(images: int, parts: int) -> Iterator[slice]:
    """Yield slices of nearly equal length, of at least two images if there are as many."""
    parts = max(1, min(parts, images // _FEWEST_IMAGES))
    bounds = [images * index // parts for index in range(parts + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield slice(start, stop)


@dataclass(frozen=True)
class BatchPart:
    """The images of a batch from `start` to `stop`, which one rank computes."""

    start: int
    stop: int
    batch_images: int
    """Size of the whole batch."""
    smallest: int
    """Size of the smallest part; with it, all ranks choose the same number of micro-batches."""
    counts: bool = True
    """False if the batch has too few images for all ranks, and this one repeats others."""
    has_image_before: bool = False
    """Whether the image before the part is loaded too, because MixUp and CutMix mix with it."""

    @classmethod
    def whole(cls, images: int) -> BatchPart:
        """Return the part of the only rank: the whole batch."""
        return cls(0, images, images, images)

    def micro_batches(self, parts: int) -> Iterator[tuple[slice, float]]:
        """Yield the slices of the part's micro-batches, and their shares of the whole batch."""
        parts = max(1, min(parts, self.smallest // _FEWEST_IMAGES))
        for each in micro_batches(self.stop - self.start, parts):
            share = (each.stop - each.start) / self.batch_images
            yield each, share if self.counts else 0.0


class DividedOrder:
    """The batches of an order, divided among ranks by position; yields those of one of them.

    Args:
        order: the order of the whole batches.
        rank: number of the rank, from 0.
        size: number of ranks.
        mixing: whether the images of a batch are mixed, each with the one before it.
    """

    def __init__(self, order: BatchOrder, rank: int, size: int, *, mixing: bool) -> None:
        self.order, self._mixing = order, mixing and size > 1
        self._rank, self._size = rank, size

    def at(self, step: int) -> BatchPart:
        """Return the part of the batch of a step."""
        return self.part_of(self.order.images_at(step))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for keys in self.order:
            part = self.part_of(len(keys))
            before = [keys[part.start - 1]] if part.has_image_before else []
            yield before + keys[part.start : part.stop]

    def part_of(self, images: int) -> BatchPart:
        """Return the part of a batch of so many images."""
        if self._size == 1:
            return BatchPart.whole(images)
        parts = list(micro_batches(images, self._size))
        counts = self._rank < len(parts)
        mine = parts[self._rank if counts else 0]
        smallest = min(each.stop - each.start for each in parts)
        return BatchPart(mine.start, mine.stop, images, smallest, counts, self._mixing)


Integers = np.ndarray[Any, np.dtype[np.int64]]
Sets = np.ndarray[Any, np.dtype[np.uint8]]
Truth = np.ndarray[Any, Any]
"""Class indices (N), int64, or sets of labels as 0 and 1 (N, K), uint8."""


@dataclass(frozen=True)
class TrainingData:
    """The prepared images, their classes, and those that a training may see."""

    images: StoredImages
    """All rows of the store, then unlabelled images; or the tokens of training and validation
    images."""
    labels: Integers
    """Class index of every row; 0 without classes, and for an unlabelled image what its teacher
    thinks most probable."""
    training: TrainingImages
    """The images to train on, with their augmentation."""
    validation_rows: Integers
    """Rows of the store to validate on, in the order of their files' digests; none when training on
    everything.

    So any first part is a random sample that depends only on the images.
    """
    paths: tuple[str, ...]
    """Path of every row of the store, as in the manifest."""
    classes: tuple[str, ...]
    tokens: TrainingTokens | None = None
    """What the batches hold in place of the images to train on, if they are trained from tokens."""
    label_sets_NK: Sets | None = None
    """The labels of every row as 0 and 1, if images have sets of them; of an unlabelled image those
    that its teacher thinks more probable than not."""

    def batches(
        self,
        order: BatchOrder | DividedOrder,
        workers: int,
        device: torch.device,
        last_step: Callable[[], int] | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches of an order: augmented images, or tokens, and labels.

        Args:
            order: which images are in which batch; see `batch_order`.
            workers: number of data-loader workers for images.
            device: the device that needs the batches.
            last_step: a function that returns the step before which the training ends, as far as it
                is known. With it, the images of streamed stores are fetched ahead.
        """
        needed = endless if last_step is None else _steps_left(order, last_step)
        if self.tokens is not None:
            return self.tokens.batches(order, device, needed)
        if last_step is not None and any(map(is_streamed, self.training.stores)):
            return self._streamed_batches(order, workers, device, last_step)
        return training_batches(order, self.training, workers, device, needed)

    def _streamed_batches(
        self,
        order: BatchOrder | DividedOrder,
        workers: int,
        device: torch.device,
        last_step: Callable[[], int],
    ) -> Iterator[Batch]:
        """Yield the batches of an order; images to validate on stay on this machine once read."""
        whole, needed = _whole(order), _steps_left(order, last_step)
        own = self.images.parts[0] if isinstance(self.images, JoinedImages) else self.images
        pages = PagesFolder()
        try:
            if isinstance(own, StreamedImages):
                file = pages.folder / "validation.bin"
                own.kept = KeptImages(self.validation_rows, own.records, file, pages.page_bytes)
            paged = StreamedOrder(order, whole, self.images, pages, last_step)
            training = dataclasses.replace(self.training, pages=pages.folder)
            yield from training_batches(paged, training, workers, device, needed)
        finally:
            pages.close()

    def order(self, config: RunConfig) -> BatchOrder:
        """Return the batches of a training run, from its first step."""
        settings, seed = config.training, config.seed
        rows, size, stored = self.training.rows, settings.batch_size, len(self.labels)
        image_bytes = math.prod(self.images.shape[1:])
        windows = ShuffleWindows.of(config.record.shuffle_window, stored, image_bytes)
        order = BatchOrder(rows, size, seed, 0, windows)
        if settings.class_balance == "sampling":
            order = BalancedOrder(rows, size, seed, 0, self.labels, windows)
        if windows and self.tokens is None and not any(map(is_streamed, self.training.stores)):
            order.on_window = ReadAhead(self.images)
        return order

    def truth(self, rows: Integers) -> Truth:
        """Return the class indices (n) of some rows, or their sets of labels (n, K)."""
        return self.labels[rows] if self.label_sets_NK is None else self.label_sets_NK[rows]

    def class_weights_K(self) -> torch.Tensor:  # noqa: N802 - the shape suffix
        """Return the balanced class weights of the training split."""
        return self.class_weights_of(self.training.rows)

    def class_weights_of(self, rows: Integers) -> torch.Tensor:
        """Return the balanced class weights (K) of some rows; see `training.class_balance`."""
        if self.label_sets_NK is not None:
            return positive_weights(self.label_sets_NK[rows])
        return compute_class_weights(self.labels[rows], len(self.classes))

    def note_on_weights(self) -> str:
        """Return which labels of sets are so rare that their weight is limited; mostly empty."""
        if self.label_sets_NK is None:
            return ""
        return sentence_on_limited_weights(self.label_sets_NK[self.training.rows], self.classes)

    def note_on_augmentation(self, device: torch.device) -> str:
        """Return that the CPU augments the images although a GPU trains; mostly empty."""
        if device.type != "cuda" or self.tokens is not None:
            return ""
        if not self.training.augment(on_device=True).changes_single_images:
            return ""
        name = self.training.augmentation.name
        return f"augmentation: {name} runs on the CPU, as its plugin cannot change images on a GPU"

    def class_of(self, row: int) -> str:
        """Return the class of a row of the store, or its labels."""
        if self.label_sets_NK is not None:
            return ", ".join(self.classes[k] for k in np.flatnonzero(self.label_sets_NK[row]))
        return self.classes[int(self.labels[row])] if self.classes else ""

    def preview_rows(self, limit: int = 8) -> Integers:
        """Return up to `limit` training rows, starting with one of each class."""
        return preview_rows(self.labels, self.training.rows, limit)


def _whole(order: BatchOrder | DividedOrder) -> BatchOrder:
    return order.order if isinstance(order, DividedOrder) else order


def _steps_left(
    order: BatchOrder | DividedOrder, last_step: Callable[[], int]
) -> Callable[[], int]:
    """Return what tells how many steps there are from the first one of an order to the last."""
    first_step = _whole(order).first_step
    return lambda: last_step() - first_step


def open_data(job: TrainingJob) -> TrainingData:
    """Open the store and read the labels and splits from the manifest."""
    rows = manifests.usable(manifests.load(job.manifest_file))
    training_rows, validation_rows = job.part.rows(rows, job.config.data.split_seed)
    labels, sets_NK = class_labels(rows["label"], job.classes, job.config.data.task)
    paths, further = tuple(rows["path"]), 0
    more_stores: tuple[Path, ...] = ()
    if job.unlabelled is not None:
        own = manifests.usable(manifests.load(job.unlabelled.manifest_file))
        paths, further = (*paths, *own["path"]), len(own)
        more_stores = (job.unlabelled.store,)
        training_rows = np.concatenate([training_rows, len(rows) + np.arange(further)])
        labels = np.concatenate([labels, np.full(further, UNLABELLED if job.classes else 0)])
    targets: Targets = labels if sets_NK is None else SetTargets(sets_NK)
    if job.teacher is not None:
        taught = job.teacher.rows(rows["split"], further)
        settings = job.config.training
        soft = soft_targets(job.teacher.file, len(job.classes), taught, labels, settings, sets_NK)
        targets, labels = soft, soft.classes()
        if isinstance(soft, SoftSetTargets):
            sets_NK = soft.sets_NK
    training = TrainingImages(
        store=job.store,
        rows=training_rows,
        targets=targets,
        augmentation=job.config.augmentation,
        image=job.image,
        seed=job.config.seed,
        more_stores=more_stores,
    )
    images: StoredImages = open_stores(training.stores)
    training_tokens = None
    if job.tokens is not None:
        tokens = job.tokens
        if tokens.fold is not None:
            units_N = units_of(rows)[training_rows]
            within = split_into_folds(labels[training_rows], units_N, tokens.folds)
            held_out = within[tokens.fold]
            validation_rows = training_rows[held_out]
            training = dataclasses.replace(training, rows=np.delete(training_rows, held_out))
        images = token_images = TokenImages(
            np.load(tokens.file, mmap_mode="r", allow_pickle=False),
            folds.find_used_rows(rows),
            stored=len(rows),
            mirrored=tokens.mirrored,
        )
        training_tokens = TrainingTokens(token_images, targets, job.config.seed)
    validation = rows.iloc[validation_rows]
    by_digest = np.lexsort((validation["path"], validation["sha256"]))
    return TrainingData(
        images=images,
        labels=labels,
        training=training,
        validation_rows=validation_rows[by_digest],
        paths=paths,
        classes=job.classes,
        tokens=training_tokens,
        label_sets_NK=sets_NK,
    )


def class_labels(
    texts: pd.Series[str], classes: Sequence[str], task: str
) -> tuple[Integers, Sets | None]:
    """Return the class of each image, or its rarest label and the sets (N, K); 0 without classes.

    Args:
        texts: the labels as a manifest has them.
        classes: the classes in their order; none for an encoder.
        task: whether an image has one label, or a set.
    """
    if not classes:
        return np.zeros(len(texts), np.int64), None
    if task == label_sets.MULTI_LABEL:
        sets_NK = label_sets.matrix(list(texts), classes)
        return label_sets.strata(sets_NK), sets_NK
    index = {label: number for number, label in enumerate(classes)}
    return texts.map(index).to_numpy().astype(np.int64), None


def units_of_rows(job: TrainingJob, rows: Integers) -> Integers:
    """Return a number for each of some rows of the store, the same where images belong together."""
    units: Integers = units_of(manifests.usable(manifests.load(job.manifest_file)))[rows]
    return units


def preview_rows(labels: Integers, rows: Integers, limit: int = 8) -> Integers:
    """Return up to `limit` rows, starting with one of each class."""
    by_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    rounds = itertools.zip_longest(*(list(group[:limit]) for group in by_class))
    ordered = [row for one_round in rounds for row in one_round if row is not None]
    return np.array(ordered[:limit])
