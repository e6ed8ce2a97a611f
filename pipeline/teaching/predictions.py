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
from patchline.pipeline.data.store.store_decoding import StoredImage, StoreSpec, read_image
from patchline.pipeline.files.atomic_files import storage_errors
from patchline.pipeline.files.earlier_rows import EarlierRows
from patchline.pipeline.files.file_locks import locked
from patchline.pipeline.files.resumable_array import ResumableArray
from patchline.pipeline.files.workspace_folder import make_folder
from patchline.pipeline.models.fitting_batches import fitting_batches
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.probing.earlier_features import earlier_features, feature_array, write_index
from patchline.pipeline.probing.features import suitable_batch_size
from patchline.pipeline.run_memory.cleaning import PREDICTIONS
from patchline.pipeline.teaching.views import View
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
            intact = array.finished.intact()
            array.begin(intact)
            write_index(array, self._computed_with, self.contents)
            finished = np.zeros(len(self.images), bool)
            for piece in intact:
                finished[slice(*piece)] = True
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
        pending: list[Array] = []
        first, saved = 0, began
        for start, rows_BO, new in self._batches(finished, stored):
            if pending and start != first + sum(map(len, pending)):
                array.write(first, np.concatenate(pending))
                pending = []
            first = first if pending else start
            pending.append(rows_BO)
            done, computed = done + len(rows_BO), computed + new
            if time.monotonic() - saved >= self.piece_seconds:
                array.write(first, np.concatenate(pending))
                pending, saved = [], time.monotonic()
            if on_progress:
                rate = computed / max(1e-9, time.monotonic() - began)
                on_progress(done, len(self.images), rate)
        if pending:
            array.write(first, np.concatenate(pending))
        return computed / max(1e-9, time.monotonic() - began) if computed else 0.0

    def _batches(self, finished: Array, stored: EarlierRows) -> Iterator[tuple[int, Array, int]]:
        """Yield the first image of each batch, its rows, and how many were computed.

        The images of the next batch are decoded meanwhile.
        """
        size = suitable_batch_size(self.image, self.device)
        starts = [
            start
            for start in range(0, len(self.images), size)
            if not finished[start : start + size].all()
        ]
        with threads() as pool:
            decoding = self._decoding(starts[0], size, pool) if starts else []
            for number, start in enumerate(starts):
                ready = decoding
                if number + 1 < len(starts):
                    decoding = self._decoding(starts[number + 1], size, pool)
                batch = self.images[start : start + size]
                rows_BO = np.empty((len(batch), len(self.views) * len(self.columns)), np.float32)
                copies = dict(stored.copies([image.sha256 for image in batch]))
                for place, row_O in copies.items():
                    rows_BO[place] = row_O
                new = np.delete(np.arange(len(batch)), list(copies))
                if len(new):
                    pixels_BHWC = np.stack([ready[place].result() for place in new])
                    rows_BO[new] = self._logits(pixels_BHWC)
                yield start, rows_BO, len(new)

    def _decoding(self, start: int, size: int, pool: ThreadPoolExecutor) -> list[Future[Pixels]]:
        batch = self.images[start : start + size]
        return [pool.submit(self._decoded, image) for image in batch]

    def _decoded(self, image: ImageToTeach) -> Pixels:
        """Return an image as the teacher takes it, uint8 (H, W, C)."""
        spec = self.image
        mapping = PixelMapping.of(spec.pixel_values.model_dump())
        stored = StoreSpec(spec.channels, spec.height, spec.width, spec.resize, mapping)
        with read_image(image.root, StoredImage(0, image.path, image.sha256), stored) as read:
            return read.resized_HWC

    def _logits(self, pixels_BHWC: Pixels) -> Array:
        """Return the logits (B, V * K); a batch is divided if the device runs out of memory."""
        parts = fitting_batches(
            len(pixels_BHWC), len(pixels_BHWC), lambda part: self._of_part(pixels_BHWC[part])
        )
        return np.concatenate([rows for _, rows in parts])

    @torch.inference_mode()
    def _of_part(self, pixels_BHWC: Pixels) -> Array:
        images_BHWC = torch.from_numpy(pixels_BHWC).to(self.device)
        images_BCHW = normalised(images_BHWC, self.image)
        columns = list(self.columns)
        logits = [self.model(viewed(images_BCHW, view))[:, columns] for view in self.views]
        rows_BO: Array = torch.stack(logits, 1).flatten(1).float().cpu().numpy()
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
