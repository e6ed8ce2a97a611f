"""The predictions of a teacher, computed once for each image and kept for all runs.

The teacher sees each image as its own package would: decoded from the file, in its own size, with
its own normalisation. The images are decoded on the way, because a store in the size of a large
teacher may not fit the disk.

Shapes: M images, B images of a batch, V views, K classes of the run, H, W and C of an image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.store.store_decoding import StoredImage, read_image
from patchline.pipeline.data.store.store_shards import StoreSpec
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.probing.features import (
    earlier_features,
    feature_array,
    suitable_batch_size,
    write_index,
)
from patchline.pipeline.models.probing.stored_rows import Progress, Rows, StoredRows
from patchline.pipeline.workspace.files.resumable_work import EarlierResult, ResumableArray
from patchline.pipeline.workspace.files.workspace_folder import PREDICTIONS
from patchline.plugin_api import ImageSpec

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_FORMAT = 1
"""Increase it when the same inputs give other predictions; stored ones are then not used."""
_NAME = "logits"


class ImageToTeach(NamedTuple):
    """An image file, and its digest when it was described."""

    root: Path
    path: str
    sha256: str


class DecodedImages:
    """Image files as pixels (M, H, W, C); while some are used, the next ones are decoded.

    Attributes:
        files: what is decoded.
        image: how the teacher sees an image.
        used: how many have been used.
    """

    def __init__(self, files: Sequence[ImageToTeach], image: ImageSpec) -> None:
        self.shape = (len(files), image.height, image.width, image.channels)
        self.used = 0
        self.files, self.image = files, image
        mapping = PixelMapping.of(image.pixel_values.model_dump())
        self._spec = StoreSpec(image.channels, image.height, image.width, image.resize, mapping)
        self._pool = threads()
        self._decoding: dict[int, Future[Pixels]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Rows) -> Pixels:
        """Return some images, in the order of the files."""
        first, stop = int(rows[0]), min(int(rows[-1]) + 1 + len(rows), len(self))
        begun = {row: each for row, each in self._decoding.items() if row >= first}
        for row in (*rows.tolist(), *range(int(rows[-1]) + 1, stop)):
            if row not in begun:
                begun[row] = self._pool.submit(self._decoded, self.files[row])
        self._decoding = begun
        self.used += len(rows)
        return np.stack([begun.pop(row).result() for row in rows.tolist()])

    def _decoded(self, file: ImageToTeach) -> Pixels:
        with read_image(file.root, StoredImage(0, file.path, file.sha256), self._spec) as read:
            return read.resized_HWC


@dataclass(frozen=True)
class TeacherOutputs(StoredRows):
    """The logits of some images, on disk.

    Attributes:
        columns: the teacher's outputs that are the classes of the run, in the run's order.
        mirrored: whether the teacher predicts the mirror image of each image, too.
        weights: digest of the teacher's weights.
    """

    what = "predictions"

    columns: tuple[int, ...]
    mirrored: bool
    weights: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        images: DecodedImages,
        workspace: Path,
        *,
        columns: tuple[int, ...],
        mirrored: bool,
        weights: str,
    ) -> Self:
        """Return the outputs for some images, in a folder of the workspace.

        Args:
            model: the teacher, on its device.
            images: the images to predict.
            workspace: the folder `.patchline`.
            columns: the teacher's outputs that are the classes of the run, in the run's order.
            mirrored: whether to predict the mirror image of each image, too.
            weights: digest of the teacher's weights.
        """
        device = next(model.parameters()).device
        outputs = cls(
            model,
            images,
            np.arange(len(images)),
            images.image,
            workspace / PREDICTIONS,
            device,
            "float32",
            suitable_batch_size(images.image, device),
            columns,
            mirrored,
            weights,
            contents=tuple(file.sha256 for file in images.files),
        )
        identity = json.dumps([*outputs._computed_with, outputs.contents])
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return replace(outputs, folder=outputs.folder / name)

    def compute(self, on_progress: Progress | None = None) -> Path:
        """Compute what is not stored yet, and return the file (M, V * K).

        If another process is computing the same predictions, wait for it.

        Raises:
            StorageError: if the disk is full or read-only.
            DataError: if an image has changed since it was described.
        """
        write_index(self.array(), self._computed_with, self.contents)
        return self._complete(on_progress).file

    def array(self) -> ResumableArray:
        """Return the file, complete or not."""
        return feature_array(self.folder, _NAME, (len(self.rows), self._dimensions))

    @property
    def views(self) -> int:
        """Number of views of each image."""
        return 2 if self.mirrored else 1

    @property
    def _dimensions(self) -> int:
        return self.views * len(self.columns)

    @property
    def _computed_with(self) -> list[Any]:
        columns = list(self.columns)
        return [_FORMAT, self.weights, repr(self.image), columns, self.mirrored, self.device.type]

    def _earlier(self) -> Iterator[EarlierResult]:
        return earlier_features(self.folder, self._computed_with, self._dimensions)

    def _of_rows(self, rows: Rows) -> torch.Tensor:
        images_BCHW = normalize(self._transfers.to_device(self.images[rows]), self.image)
        columns = list(self.columns)
        logits = [self.model(images_BCHW)[:, columns]]
        if self.mirrored:
            logits.append(self.model(images_BCHW.flip(3))[:, columns])
        return self._transfers.to_host(torch.stack(logits, 1).flatten(1).float())
