"""Seed an augmentation for each sample: it depends only on (seed, epoch, image)."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

from pipeline.config import PluginChoice
from pipeline.errors import PluginError
from pipeline.plugin_api import AugmentationContext, ImageSpec
from pipeline.plugin_system.plugin_loader import load_augmentation, plugin_errors
from pipeline.plugin_system.plugin_settings import settings_of

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class SeededAugmentation:
    """Apply an augmentation plugin to single images, reproducibly.

    The random state is set before every image, so an image looks the same in an epoch whatever the
    number of workers or the order of loading, and after a resume.
    """

    def __init__(self, choice: PluginChoice, image: ImageSpec, seed: int) -> None:
        os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would contact a registry
        settings = settings_of("augmentation", choice, "augmentation")
        context = AugmentationContext(image.channels, image.height, image.width)
        plugin = load_augmentation(choice.name)
        with plugin_errors("augmentation", choice.name, "failed to build"):
            transform = plugin.build(settings, context)
        self._transform = SeededTransform(transform, context, choice.name)
        self._seed = seed

    def __call__(self, image_HWC: Pixels, epoch: int, index: int) -> Pixels:
        """Return the image as augmented in that epoch."""
        return self._transform(image_HWC, [self._seed, epoch, index])


class SeededTransform:
    """The transform that an augmentation plugin built, made to depend only on a key.

    Raises:
        PluginError: if the plugin did not build an `albumentations.Compose`.
    """

    def __init__(self, transform: Any, context: AugmentationContext, name: str) -> None:
        if not hasattr(transform, "set_random_state"):
            raise PluginError(
                f"The augmentation plugin '{name}' built a {type(transform).__name__}, not an "
                "albumentations.Compose. Repair its build."
            )
        self._transform = transform
        self._shape = (context.height, context.width, context.channels)
        self._name = name

    def __call__(self, image_HWC: Pixels, key: list[int]) -> Pixels:
        """Return the augmented image; the same key gives the same result.

        Raises:
            PluginError: if the transform changes the shape or the type.
        """
        sequence = np.random.SeedSequence(key)
        generator = np.random.Generator(np.random.PCG64(sequence))
        python_generator = random.Random(int(generator.integers(2**63)))  # noqa: S311 - no secret
        self._transform.set_random_state(generator, python_generator)
        changed: Pixels = self._transform(image=image_HWC)["image"]
        if changed.ndim == 2:  # noqa: PLR2004 - some transforms drop a single channel
            changed = changed[:, :, None]
        if changed.shape != self._shape or changed.dtype != np.uint8:
            raise PluginError(
                f"The augmentation plugin '{self._name}' returned a {changed.dtype} image of shape "
                f"{changed.shape} for a uint8 image of shape {self._shape}. Keep shape and type."
            )
        return changed


def preview_grid(
    augmentation: SeededAugmentation, images: Pixels, rows: np.ndarray[Any, Any], epochs: int = 8
) -> Pixels:
    """Return one picture (H, W, 3): originals in the first column, then a column per epoch."""
    lines = []
    for row in rows:
        original = np.array(images[row])
        seen = [original, *(augmentation(original, epoch, int(row)) for epoch in range(epochs))]
        scaled = [_enlarged(image) for image in seen]
        gap = np.full((scaled[0].shape[0], 4, 3), 255, np.uint8)
        lines.append(np.concatenate([part for image in scaled for part in (image, gap)], axis=1))
        lines.append(np.full((4, lines[0].shape[1], 3), 255, np.uint8))
    return np.concatenate(lines, axis=0)


def _enlarged(image_HWC: Pixels, smallest_side: int = 64) -> Pixels:
    factor = max(1, smallest_side // image_HWC.shape[0])
    rgb = np.repeat(image_HWC, 3, axis=2) if image_HWC.shape[2] == 1 else image_HWC
    return np.repeat(np.repeat(rgb, factor, axis=0), factor, axis=1)
