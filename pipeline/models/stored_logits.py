"""A saved model's logits of stored images: computed, unless they are kept beside its weights.

They are what the model's package computes, in float32. Logits that are not, such as those of
features in bfloat16, are not kept, and computed when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchline.pipeline.files.atomic_files import replacing
from patchline.pipeline.files.stored_images import StoredImages
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model

Array = np.ndarray[Any, Any]
_FILE = "logits.npy"


def save_logits(folder: Path, logits_NK: Array, *, precision: str, device: str) -> None:
    """Keep the logits of all images of the store beside a model's weights, if they are exact.

    Args:
        folder: of the saved model.
        logits_NK: of all images of the store.
        precision: that computed them, float32 or bfloat16.
        device: kind of device that computed them; an accelerator may round float32.
    """
    if precision != "float32" or device != "cpu":
        return
    with replacing(folder / _FILE) as temporary, temporary.open("wb") as opened:
        np.save(opened, logits_NK.astype(np.float32), allow_pickle=False)


def logits_of(
    folder: Path,
    images: StoredImages,
    rows: Array,
    device: torch.device,
    on_progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Return float32 logits (N, K) of some images, in the order of the rows.

    Args:
        folder: of the saved model.
        images: all images of the store, uint8 (M, H, W, C).
        rows: the images to predict.
        device: to compute on.
        on_progress: called with the number of predicted images, and of all.
    """
    file = folder / _FILE
    if file.is_file():
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)[rows])
    model, description = load_model(folder)
    logits_NK = predict_logits(
        model.to(device), images, rows, description.image, device=device, on_progress=on_progress
    )
    return logits_NK.numpy()
