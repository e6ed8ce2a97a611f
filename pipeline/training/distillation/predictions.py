"""The predictions of a teacher, computed once for each image and kept for all runs.

The teacher sees each image as its own package would: decoded from the file, in its own size, with
its own normalisation. The images are decoded on the way, because a store in the size of a large
teacher may not fit the disk.

Shapes: M images, B images of a batch, V views, K classes of the run, H, W and C of an image.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.store.store_decoding import StoredImage, read_image
from patchline.pipeline.data.store.store_shards import StoreSpec
from patchline.pipeline.models.inference import Transfers, fitting_batches, normalised
from patchline.pipeline.models.probing.features import (
    earlier_features,
    feature_array,
    suitable_batch_size,
    write_index,
)
from patchline.pipeline.training.distillation.job import View
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import locked
from patchline.pipeline.workspace.files.resumable_work import EarlierRows, ResumableArray
from patchline.pipeline.workspace.files.workspace_folder import PREDICTIONS, make_folder
from patchline.plugin_api import ImageSpec

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Progress = Callable[[int, int, float], None]
"""Called with the number of finished images, the number of all, and images/s."""

_FORMAT = 1
"""Increase it when the same inputs give other predictions; stored ones are then not used."""
_NAME = "logits"
_PIECE_SECONDS = 2.0
"""How long to compute before the results are stored; a kill loses no more."""


class ImageToTeach(NamedTuple):
    """An image file, and its digest when it was described."""

    root: Path
    path: str
    sha256: str


@dataclass(frozen=True)
class TeacherOutputs:
    """The logits of some images, on disk.

    Attributes:
        model: the teacher, on its device, in evaluation mode.
        weights: digest of its weights.
        image: how it sees an image.
        columns: its outputs that are the classes of the run, in the run's order.
        images: what to predict.
        views: of each image.
        workspace: the folder `.patchline`.
        device: of the model.
    """

    model: nn.Module
    weights: str
    image: ImageSpec
    columns: tuple[int, ...]
    images: Sequence[ImageToTeach]
    views: tuple[View, ...]
    workspace: Path
    device: torch.device
    piece_seconds: float = _PIECE_SECONDS

    @property
    def contents(self) -> list[str]:
        """What each row is computed from."""
        return [image.sha256 for image in self.images]

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        identity = json.dumps([*self._computed_with, self.contents])
        return self.workspace / PREDICTIONS / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def compute(self, on_progress: Progress | None = None) -> tuple[Path, float]:
        """Compute what is not stored yet, and return the file (M, V * K) and images/s.

        If another process is computing the same predictions, wait for it. The rate is 0 if all were
        stored.

        Raises:
            StorageError: if the disk is full or read-only.
            DataError: if an image has changed since it was described.
        """
        array = self._array()
        with storage_errors(self.folder):
            make_folder(self.folder)
        with locked(self.folder / ".lock", _on_wait):
            finished = array.resume()
            write_index(array, self._computed_with, self.contents)
            rate = self._fill(array, finished, on_progress)
        return array.file, rate

    @property
    def _computed_with(self) -> list[Any]:
        """What decides the predictions of an image, whatever other images there are."""
        views = [list(view) for view in self.views]
        columns = list(self.columns)
        return [_FORMAT, self.weights, repr(self.image), columns, views, self.device.type]

    def _array(self) -> ResumableArray:
        shape = (len(self.images), len(self.views) * len(self.columns))
        return feature_array(self.folder, _NAME, shape)

    def _fill(self, array: ResumableArray, finished: Array, on_progress: Progress | None) -> float:
        """Write the rows that are not finished, and return the images/s of those computed now."""
        missing = np.flatnonzero(~finished)
        dimensions = len(self.views) * len(self.columns)
        earlier = earlier_features(self.folder, self._computed_with, dimensions)
        stored = EarlierRows(earlier, [self.images[int(place)].sha256 for place in missing])
        done, computed, began = int(finished.sum()), 0, time.monotonic()
        transfers = Transfers(self.device)
        pending: list[_Batch] = []
        first, saved = 0, began

        def write() -> None:
            transfers.wait()
            array.write(first, np.concatenate([batch.rows_BO() for batch in pending]))
            pending.clear()

        for start, batch in self._batches(finished, stored, transfers):
            if pending and start != first + sum(each.images for each in pending):
                write()
            first = first if pending else start
            pending.append(batch)
            done, computed = done + batch.images, computed + len(batch.new)
            if time.monotonic() - saved >= self.piece_seconds:
                write()
                saved = time.monotonic()
            if on_progress:
                rate = computed / max(1e-9, time.monotonic() - began)
                on_progress(done, len(self.images), rate)
        if pending:
            write()
        return computed / max(1e-9, time.monotonic() - began) if computed else 0.0

    def _batches(
        self, finished: Array, stored: EarlierRows, transfers: Transfers
    ) -> Iterator[tuple[int, _Batch]]:
        """Yield the first image of each batch, and its logits.

        The images of the next batch are decoded meanwhile, and on a GPU also while the model still
        computes. An image whose logits can be copied is not decoded.
        """
        size = suitable_batch_size(self.image, self.device)
        starts = [
            start
            for start in range(0, len(self.images), size)
            if not finished[start : start + size].all()
        ]
        with threads() as pool:
            begun: _Batch | None = None
            for start, following in zip(starts, [*starts[1:], None], strict=False):
                batch = begun or self._begun(start, size, stored, pool)
                begun = None if following is None else self._begun(following, size, stored, pool)
                yield start, self._predicted(batch, transfers)

    def _begun(
        self, start: int, size: int, stored: EarlierRows, pool: ThreadPoolExecutor
    ) -> _Batch:
        """Return a batch whose images are being decoded, except those with logits to copy."""
        images = self.images[start : start + size]
        copies = dict(stored.copies([image.sha256 for image in images]))
        new = [place for place in range(len(images)) if place not in copies]
        decoding = [pool.submit(self._decoded, images[place]) for place in new]
        return _Batch(len(images), copies, new, decoding, [])

    def _predicted(self, batch: _Batch, transfers: Transfers) -> _Batch:
        """Return the batch with its logits, which the device may still compute."""
        if not batch.new:
            return batch
        pixels_BHWC = np.stack([image.result() for image in batch.decoding])
        parts = fitting_batches(
            len(pixels_BHWC),
            len(pixels_BHWC),
            lambda part: self._of_part(pixels_BHWC[part], transfers),
        )
        return batch._replace(decoding=[], parts=[logits_BO for _, logits_BO in parts])

    def _decoded(self, image: ImageToTeach) -> Pixels:
        """Return an image as the teacher takes it, uint8 (H, W, C)."""
        spec = self.image
        mapping = PixelMapping.of(spec.pixel_values.model_dump())
        stored = StoreSpec(spec.channels, spec.height, spec.width, spec.resize, mapping)
        with read_image(image.root, StoredImage(0, image.path, image.sha256), stored) as read:
            return read.resized_HWC

    @torch.inference_mode()
    def _of_part(self, pixels_BHWC: Pixels, transfers: Transfers) -> torch.Tensor:
        """Return the logits (B, V * K) of decoded images; they are there after `wait`."""
        images_BCHW = normalised(transfers.to_device(pixels_BHWC), self.image)
        columns = list(self.columns)
        logits = [self.model(viewed(images_BCHW, view))[:, columns] for view in self.views]
        return transfers.to_host(torch.stack(logits, 1).flatten(1).float())


class _Batch(NamedTuple):
    """Some consecutive images, and their logits as far as they are there."""

    images: int
    copies: dict[int, Array]
    """By place in the batch: logits that were computed before."""
    new: list[int]
    """The places of all others."""
    decoding: list[Future[Pixels]]
    """Of the new ones."""
    parts: list[torch.Tensor]
    """The logits of the new ones, in order; whole once the device has finished."""

    def rows_BO(self) -> Array:  # noqa: N802 - the shape suffix
        """Return the logits of all (B, V * K)."""
        width = len(next(iter(self.copies.values()))) if self.copies else self.parts[0].shape[1]
        rows_BO = np.empty((self.images, width), np.float32)
        for place, row_O in self.copies.items():
            rows_BO[place] = row_O
        if self.parts:
            rows_BO[self.new] = np.concatenate([part.numpy() for part in self.parts])
        return rows_BO


def viewed(images_BCHW: torch.Tensor, view: View) -> torch.Tensor:
    """Return a view of images, in their size."""
    height, width = images_BCHW.shape[-2:]
    if view.side < 1:
        top, left = round(view.top * height), round(view.left * width)
        bottom, right = top + round(view.side * height), left + round(view.side * width)
        part_BCHW = images_BCHW[:, :, top:bottom, left:right]
        images_BCHW = functional.interpolate(
            part_BCHW, size=(height, width), mode="bilinear", align_corners=False
        )
    return images_BCHW.flip(3) if view.mirrored else images_BCHW


def _on_wait() -> None:
    logger.warning("Another process is computing the same predictions; waiting until it ends.")
