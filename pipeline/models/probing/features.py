"""The features of a frozen model: the input of its head for each image, computed once and kept.

Shapes: N images, B images of a batch, H, W and C of an image, D features.

Beside each array lies an index: with what its features were computed, and the digest of what each
row holds. So images that were added to a folder do not make the features of the others worthless.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.inference import logits_of_batch
from patchline.pipeline.models.probing.stored_rows import Progress, Rows, StoredRows
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.resumable_work import EarlierResult, ResumableArray
from patchline.plugin_api import ImageSpec

_SUFFIX = ".images.json"


def feature_array(folder: Path, name: str, shape: tuple[int, int]) -> ResumableArray:
    """Return the array (N, D) of this name.

    Args:
        folder: the folder that holds the array; `ResumableArray.begin` needs it to exist.
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
        computed_with: all that decides the features of an image, as for `write_index`.
        dimensions: D, the number of features of an image.
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


Floats = np.ndarray[Any, np.dtype[np.float32]]

_FORMAT = 1
"""Increase it when the same inputs give other features; stored ones are then not used."""
_CPU_PIXELS, _ACCELERATOR_PIXELS = 16 * 224**2, 256 * 224**2
"""Of a batch; larger batches are not faster on a CPU, because they leave its caches."""
_MOST_IMAGES = 256


@dataclass(frozen=True)
class FeatureStore(StoredRows):
    """The features of some images, on disk.

    The files are identified by the rows, their order, the batch size, the precision and the kind of
    device; the folder by all else. With `contents`, features that are stored in a folder beside
    this one, computed by the same network, are not computed again.

    Attributes:
        head: the layer of the model whose inputs are the features.
        network: digest of the model without its head, and of how images are decoded.
    """

    what = "features"
    head: nn.Linear
    network: str = ""

    def features(self, on_progress: Progress | None = None) -> Floats:
        """Compute what is not stored yet, and return all features (N, D), mapped from disk.

        If another process is computing the same features, wait for it. In a group, all processes
        call this together, and all but the first one get no features.

        Raises:
            StorageError: if the disk is full or read-only.
            ConfigError: if the head's input is not one vector per image.
        """
        none = np.empty((0, self.head.in_features), np.float32)
        if not len(self.rows):
            return none
        is_first = not (self.group and self.group.rank)
        if self.contents and is_first:
            write_index(self.array(), self._computed_with, self.contents)
        array = self._complete(on_progress)
        return array.opened() if is_first else none

    def array(self) -> ResumableArray:
        """Return the array on disk (N, D)."""
        rows = hashlib.sha256(np.ascontiguousarray(self.rows, np.int64).tobytes()).hexdigest()
        identity = [_FORMAT, rows, self.batch_size, self.precision, self.device.type]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        return feature_array(self.folder, name, (len(self.rows), self.head.in_features))

    @property
    def _computed_with(self) -> tuple[str | int, ...]:
        """What decides the features of an image, whatever other images there are."""
        return _FORMAT, self.network, self.batch_size, self.precision, self.device.type

    def _earlier(self) -> Iterator[EarlierResult]:
        """Yield the features in the folders beside this one."""
        return earlier_features(self.folder, self._computed_with, self.head.in_features)

    def _of_rows(self, rows: Rows) -> torch.Tensor:
        """Return what the head gets for some rows."""
        inputs: list[torch.Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            images_BHWC = self._transfers.to_device(self.images[rows])
            logits_of_batch(self.model, images_BHWC, self.image, self.precision)
        finally:
            hook.remove()
        shapes = [tuple(given.shape) for given in inputs]
        if shapes != [(len(rows), self.head.in_features)]:
            raise ConfigError(
                f"The model's last linear layer gets tensors of shape {shapes} for {len(rows)} "
                "images, but a linear probe needs one vector per image. Train all weights instead, "
                "or choose another model."
            )
        return self._transfers.to_host(inputs[0].float())


def suitable_batch_size(image: ImageSpec, device: torch.device) -> int:
    """Return how many images to compute together: on a CPU 16 of 224x224 pixels."""
    pixels = _CPU_PIXELS if device.type == "cpu" else _ACCELERATOR_PIXELS
    return min(_MOST_IMAGES, max(1, pixels // (image.height * image.width)))
