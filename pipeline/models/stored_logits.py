"""A saved model's logits of stored images: computed, unless they are kept beside its weights.

They are what the model's package computes, in float32. Logits that are not, such as those of
features in bfloat16, are not kept, and computed when they are needed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import (
    exact_float32,
    on_device,
    predict_logits,
    whole_batches,
)
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.stored_features import load_features, save_features
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]
_FILE, _FEATURES_FILE = "logits.npy", "features.npz"


class SomeFeatures(Protocol):
    """Collects the features of some images while a model predicts them."""

    def observing(
        self, model: nn.Module, image: ImageSpec, num_classes: int, rows: Array
    ) -> AbstractContextManager[Callable[[slice], None] | None]:
        """Observe a model; the result is called after each batch of the rows."""

    def take_kept(self, features: Mapping[int, Array]) -> None:
        """Take features (D) that were kept, by their row."""


def save_logits(
    folder: Path,
    logits_NK: Array,
    *,
    precision: str,
    device: str,
    features: Mapping[int, Array] | None = None,
) -> None:
    """Keep the logits of all images of the store beside a model's weights, if they are exact.

    Args:
        folder: the folder of the saved model.
        logits_NK: the logits of all images of the store.
        features: the features of some of them, by their row.
        precision: the precision that they were computed in, float32 or bfloat16.
        device: the kind of device that computed them; an accelerator may round float32.
    """
    if precision != "float32" or device != "cpu":
        return
    with open_replacing(folder / _FILE) as opened:
        np.save(opened, logits_NK.astype(np.float32), allow_pickle=False)
    if features:
        save_features(folder / _FEATURES_FILE, features)


def read_kept_features(folder: Path) -> dict[int, Array]:
    """Return the features that are kept beside a model's weights, by their row."""
    return load_features(folder / _FEATURES_FILE)


def logits_of(
    folder: Path,
    images: StoredImages,
    rows: Array,
    devices: Sequence[torch.device],
    on_progress: Callable[[int, int], None] | None = None,
    features: SomeFeatures | None = None,
) -> Array:
    """Return float32 logits (N, K) of some images, in the order of the rows.

    Args:
        folder: the folder of the saved model.
        images: all images of the store, uint8 (M, H, W, C).
        rows: the images to predict.
        devices: the devices to compute on, of one kind; each predicts a part of the images.
        on_progress: called with the number of predicted images, and of all.
        features: receives those of some images.
    """
    file = folder / _FILE
    if file.is_file():
        if features:
            features.take_kept(read_kept_features(folder))
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)[rows])
    model, description = load_model(folder)
    parts = whole_batches(len(rows), len(devices))
    models = [model, *(copy.deepcopy(model) for _ in parts[1:])]
    finished, reader = _Finished(len(rows), on_progress), _OneReader(images)

    def of_part(model: nn.Module, device: torch.device, part: slice) -> torch.Tensor:
        tap = (
            features.observing(model, description.image, len(description.classes), rows[part])
            if features
            else nullcontext(None)
        )
        with on_device(device), tap as on_batch:
            return predict_logits(
                model.to(device),
                reader,
                rows[part],
                description.image,
                device=device,
                on_progress=finished.counter(),
                on_batch=on_batch,
            )

    if len(parts) == 1:
        return of_part(model, devices[0], parts[0]).numpy()
    # What makes float32 exact is a setting of the process, which no part may end for the others.
    with exact_float32(devices[0]), ThreadPoolExecutor(len(parts)) as threads:
        logits = list(threads.map(of_part, models, devices, parts))
    return torch.cat(logits).numpy()


class _OneReader:
    """Images that several threads read, one after another."""

    def __init__(self, images: StoredImages) -> None:
        self._images, self._lock = images, threading.Lock()
        self.shape = images.shape

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, key: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an image, or several."""
        with self._lock:
            return self._images[key]


class _Finished:
    """Counts the images that all devices have predicted."""

    def __init__(self, total: int, on_progress: Callable[[int, int], None] | None) -> None:
        self._total, self._on_progress = total, on_progress
        self._done, self._lock = 0, threading.Lock()

    def counter(self) -> Callable[[int, int], None]:
        """Return what one of the devices reports its own number of images to."""
        before = 0

        def count(done: int, _: int) -> None:
            nonlocal before
            with self._lock:
                self._done += done - before
                before = done
                if self._on_progress:
                    self._on_progress(self._done, self._total)

        return count
