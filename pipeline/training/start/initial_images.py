"""Layers that take their initial values from training images, such as a whitened convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.files.stored_images import StoredImages
from patchline.pipeline.models.inference import normalised
from patchline.plugin_api import ImageSpec

_MOST_IMAGES = 5_000
_MOST_PIXELS = 2_000_000


def initialise_from_images(
    model: nn.Module,
    images: StoredImages,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    image: ImageSpec,
    seed: int,
) -> None:
    """Call `initialise_from(images_BCHW)` of every module that has it.

    Args:
        model: just built.
        images: the stored images, uint8 (N, H, W, C).
        rows: those of the training split.
        image: how they are normalised.
        seed: decides which images are taken: at most 5,000, and two million pixels.
    """
    wanting = [module for module in model.modules() if hasattr(module, "initialise_from")]
    if not wanting:
        return
    count = max(1, min(_MOST_IMAGES, _MOST_PIXELS // (image.height * image.width), len(rows)))
    chosen = np.sort(np.random.default_rng([seed, len(rows)]).choice(rows, count, replace=False))
    batch_BHWC = torch.from_numpy(np.array(images[chosen]))
    for module in wanting:
        initialise: Any = module.initialise_from
        initialise(normalised(batch_BHWC, image))
