"""The features of a frozen model: the input of its head for each image, computed once and kept.

Shapes: N images, B images of a batch, H, W and C of an image, D features.

Beside each array lies an index: with what its features were computed, and the digest of what each
row holds. So images that were added to a folder do not make the features of the others worthless.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.inference import Transfers, fitting_batches, logits_of_batch
from patchline.pipeline.models.probing.linear_head import evaluating
from patchline.pipeline.models.probing.shared_batches import (
    BatchGroup,
    agreed,
    computed_in_turn,
    locked_for,
    wait_for_lock,
)
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.resumable_work import (
    EarlierResult,
    EarlierRows,
    Piece,
    ResumableArray,
)
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.pipeline.workspace.workspace import workspace_of
from patchline.plugin_api import ImageSpec

_SUFFIX = ".images.json"


def feature_array(folder: Path, name: str, shape: tuple[int, int]) -> ResumableArray:
    """Return the array (N, D) of this name.

    Args:
        folder: of the array; `ResumableArray.begin` needs it to exist.
        name: identifies the rows and what they are computed with.
        shape: N and D, not 0.
    """
    return ResumableArray(folder / f"{name}.npy", shape, np.float32, "stored features")


def write_index(
    array: ResumableArray, computed_with: Sequence[Any], contents: Sequence[str]
) -> None:
    """Write the index of an array, unless it is there.

    Args:
        array: its name is unique for these images and what they were computed with.
        computed_with: all that decides the features of an image, as JSON values.
        contents: digest of what each row holds.
    """
    file = array.file.with_suffix(_SUFFIX)
    if not file.exists():
        index = {"with": list(computed_with), "contents": list(contents)}
        write_text(file, json.dumps(index))


def earlier_features(
    own: Path, computed_with: Sequence[Any], dimensions: int
) -> Iterator[EarlierResult]:
    """Yield the arrays of features in the folders beside one, the latest first.

    Args:
        own: the folder that lies beside those to search.
        computed_with: as for `write_index`.
        dimensions: D.
    """
    for file in _newest_first(own):
        contents = _contents(file, list(computed_with))
        if contents:
            name = file.name.removesuffix(_SUFFIX)
            array = feature_array(file.parent, name, (len(contents), dimensions))
            yield EarlierResult(contents, array.finished, array.mapped)


def _newest_first(own: Path) -> Iterator[Path]:
    """Yield the indexes in the folders beside one, the latest first."""
    dated = []
    for file in own.parent.glob(f"*/*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if file.parent != own:
                dated.append((file.stat().st_mtime, file))
    return (file for _, file in sorted(dated, reverse=True))


def _contents(file: Path, computed_with: list[Any]) -> list[str]:
    """Return the digests in an index; none if it is unreadable, or belongs to other features."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
        return list(index["contents"]) if index["with"] == computed_with else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


logger = logging.getLogger(__name__)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Batch = list[torch.Tensor]
"""The features of its images, in order; whole once the device has finished."""
Progress = Callable[[int, int], None]
"""Called with the number of finished images and the number of all images."""

_FORMAT = 1
"""Increase it when the same inputs give other features; stored ones are then not used."""
_PIECE_SECONDS = 2.0
_CPU_PIXELS, _ACCELERATOR_PIXELS = 16 * 224**2, 256 * 224**2
"""Of a batch; larger batches are not faster on a CPU, because they leave its caches."""
_MOST_IMAGES = 256
_TRIAL_IMAGES, _TRIAL_SECONDS = 4, 0.25


@dataclass(frozen=True)
class FeatureStore:
    """The features of some images, on disk.

    The files are identified by the rows, their order, the batch size, the precision and the kind of
    device; the folder by all else.

    Attributes:
        model: on its device.
        head: the layer of the model whose inputs are the features.
        images: uint8 (N, H, W, C).
        rows: the images to compute, in this order.
        image: how the model's images are normalised.
        folder: for this model, its weights, and these images.
        device: of the model.
        precision: float32 or bfloat16.
        batch_size: images that are computed together.
        piece_seconds: how long to compute before the results are stored; a kill loses no more.
        contents: digest of what each row holds, such as its file's. With these, features that are
            stored in a folder beside this one, computed by the same network, are not computed
            again.
        network: digest of the model without its head, and of how images are decoded.
        group: all processes whose stores are the same and compute the features together: the first
            one stores them; None for a process alone.
    """

    model: nn.Module
    head: nn.Linear
    images: StoredImages
    rows: Rows
    image: ImageSpec
    folder: Path
    device: torch.device
    precision: str
    batch_size: int
    piece_seconds: float = _PIECE_SECONDS
    contents: tuple[str, ...] = ()
    network: str = ""
    group: BatchGroup | None = None

    def remaining(self) -> int:
        """Return the number of images whose features are not stored yet, or are damaged."""
        array = self._array()
        workspace_of(array.file).fetch_array(array.file)
        missing = np.flatnonzero(~self._finished(array.finished.intact()))
        return len(missing) - sum(1 for _ in self._stored_elsewhere(missing).copies(self.contents))

    def features(self, on_progress: Progress | None = None) -> Floats:
        """Compute what is not stored yet, and return all features (N, D), mapped from disk.

        If another process is computing the same features, wait for it. In a group, all processes
        call this together, and all but the first one get no features.

        Raises:
            StorageError: if the disk is full or read-only.
            ConfigError: if the head's input is not one vector per image.
        """
        if not len(self.rows):
            return np.empty((0, self.head.in_features), np.float32)
        if self.group and self.group.rank:
            return self._assist(self.group)
        array = self._array()
        lock, workspace = array.file.with_suffix(".lock"), workspace_of(array.file)
        with locked_for(self.group, lock, _on_wait), evaluating(self.model):
            workspace.fetch_array(array.file)
            intact = array.finished.intact()
            array.begin(intact)
            if self.contents:
                write_index(array, self._computed_with, self.contents)
            finished = self._finished(intact)
            stored = self._stored_elsewhere(np.flatnonzero(~finished))
            starts = range(0, len(self.rows), self.batch_size)
            missing = agreed(self.group, [start for start in starts if not finished[start]])
            done = int(finished.sum())
            if on_progress and done:
                on_progress(done, len(self.rows))
            for start, features_ND in self._pieces(missing, done, stored, on_progress):
                array.write(start, features_ND)
            workspace.send_array(array.file)
            return array.opened()

    def _assist(self, group: BatchGroup) -> Floats:
        """Compute this process's share of what the first one lacks, and return no features."""
        wait_for_lock(group)
        with evaluating(self.model):
            for _ in self._together(group, agreed(group, []), None):
                pass
        return np.empty((0, self.head.in_features), np.float32)

    @property
    def _computed_with(self) -> tuple[str | int, ...]:
        """What decides the features of an image, whatever other images there are."""
        return _FORMAT, self.network, self.batch_size, self.precision, self.device.type

    def _finished(self, pieces: list[Piece]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows (N,) are in these pieces."""
        finished = np.zeros(len(self.rows), bool)
        for piece in pieces:
            finished[slice(*piece)] = True
        return finished

    def _stored_elsewhere(self, positions: Rows) -> EarlierRows:
        """Return the features for these positions in the rows that other folders have."""
        missing = [self.contents[position] for position in positions] if self.contents else []
        dimensions = self.head.in_features
        return EarlierRows(earlier_features(self.folder, self._computed_with, dimensions), missing)

    def _array(self) -> ResumableArray:
        rows = hashlib.sha256(np.ascontiguousarray(self.rows, np.int64).tobytes()).hexdigest()
        identity = [_FORMAT, rows, self.batch_size, self.precision, self.device.type]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        return feature_array(self.folder, name, (len(self.rows), self.head.in_features))

    def _pieces(
        self,
        starts: list[int],
        done: int,
        stored: EarlierRows,
        on_progress: Progress | None,
    ) -> Iterator[tuple[int, Floats]]:
        """Yield features of consecutive batches together with the position of their first image."""
        batches: list[Batch] = []
        first = stop = 0
        began = time.monotonic()
        for start, batch in self._batches(starts, stored):
            late = time.monotonic() - began >= self.piece_seconds
            if batches and (late or start != stop):
                yield first, self._finish(batches)
                batches, began = [], time.monotonic()
            if not batches:
                first = start
            batches.append(batch)
            images = sum(len(part) for part in batches[-1])
            stop, done = start + images, done + images
            if on_progress:
                on_progress(done, len(self.rows))
        if batches:
            yield first, self._finish(batches)

    def _batches(self, starts: list[int], stored: EarlierRows) -> Iterator[tuple[int, Batch]]:
        """Yield the start of each batch, and its features."""
        if self.group is not None:
            yield from self._together(self.group, starts, stored)
            return
        for start in starts:
            yield start, self._of_batch(start, stored)

    def _together(
        self, group: BatchGroup, starts: list[int], stored: EarlierRows | None
    ) -> Iterator[tuple[int, Batch]]:
        """Compute whole batches in turn, and yield all of them in the first process of a group."""

        def compute(start: int) -> torch.Tensor:
            return torch.from_numpy(self._finish([self._of_batch(start, stored)]))

        like_BD = torch.empty(self.batch_size, self.head.in_features)
        for start, features_BD in computed_in_turn(group, starts, like_BD, compute):
            yield start, [features_BD[: len(self.rows) - start]]

    def _finish(self, batches: list[Batch]) -> Floats:
        """Wait for the features of some batches, and return them together."""
        self._transfers.wait()
        return np.concatenate([part.numpy() for parts in batches for part in parts])

    @cached_property
    def _transfers(self) -> Transfers:
        return Transfers(self.device)

    def _of_batch(self, start: int, stored: EarlierRows | None) -> Batch:
        """Return the features of the batch that begins at a position: stored ones, or computed.

        The device may still compute them, while the images of the next batch are read.
        """
        rows = self.rows[start : start + self.batch_size]
        contents = self.contents[start : start + self.batch_size]
        copies = dict(stored.copies(contents)) if stored else {}
        if not copies:
            return self._computed(rows)
        features_BD = np.empty((len(rows), self.head.in_features), np.float32)
        new = np.delete(np.arange(len(rows)), list(copies))
        if len(new):
            features_BD[new] = self._finish([self._computed(rows[new])])
        for place, features_D in copies.items():
            features_BD[place] = features_D
        return [torch.from_numpy(features_BD)]

    def _computed(self, rows: Rows) -> Batch:
        """Return the features of a batch; it is divided if the device runs out of memory."""
        parts = fitting_batches(len(rows), len(rows), lambda part: self._inputs_of(rows[part]))
        return [features_BD for _, features_BD in parts]

    def _inputs_of(self, rows: Rows) -> torch.Tensor:
        """Return what the head gets for some rows."""
        inputs: list[torch.Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            images_BHWC = self._transfers.to_device(self.images[rows])
            logits_of_batch(self.model, images_BHWC, self.image, self.precision)
        finally:
            hook.remove()
        return self._to_host(inputs, len(rows))

    def _to_host(self, inputs: list[torch.Tensor], images: int) -> torch.Tensor:
        shapes = [tuple(given.shape) for given in inputs]
        if shapes != [(images, self.head.in_features)]:
            raise ConfigError(
                f"The model's last linear layer gets tensors of shape {shapes} for {images} images,"
                " but a linear probe needs one vector per image. Train all weights instead, or "
                "choose another model."
            )
        return self._transfers.to_host(inputs[0].float())


def _on_wait() -> None:
    logger.warning("Another process is computing the same features; waiting until it ends.")


def suitable_batch_size(image: ImageSpec, device: torch.device) -> int:
    """Return how many images to compute together: on a CPU 16 of 224x224 pixels."""
    pixels = _CPU_PIXELS if device.type == "cpu" else _ACCELERATOR_PIXELS
    return min(_MOST_IMAGES, max(1, pixels // (image.height * image.width)))


def seconds_per_image(
    model: nn.Module,
    images: StoredImages,
    rows: Rows,
    image: ImageSpec,
    device: torch.device,
    precision: str,
) -> float:
    """Measure on the first rows how long the features of one image take.

    Times two batches after a warm-up. They are small for a slow model, and grow up to the batch
    size of the computation as long as a batch takes less than a quarter of a second.
    """
    if not len(rows):
        return 0.0
    largest = min(suitable_batch_size(image, device), len(rows))
    size = min(_TRIAL_IMAGES, largest)

    def seconds() -> float:
        began = time.perf_counter()
        _forward(model, images, rows[:size], image, device, precision)
        return time.perf_counter() - began

    with evaluating(model):
        seconds()
        while (taken := seconds()) < _TRIAL_SECONDS and size < largest:
            size = min(4 * size, largest)
            seconds()
        return (taken + seconds()) / (2 * size)


def _forward(
    model: nn.Module,
    images: StoredImages,
    rows: Rows,
    image: ImageSpec,
    device: torch.device,
    precision: str,
) -> torch.Tensor:
    """Return the logits of some rows on the CPU, so that the device has finished."""
    images_BHWC = torch.from_numpy(np.array(images[rows])).to(device)
    return logits_of_batch(model, images_BHWC, image, precision).cpu()
