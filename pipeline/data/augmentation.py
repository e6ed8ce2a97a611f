"""Seed an augmentation for each sample, so that it depends on (seed, epoch, image) alone."""

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

    The random state is set before every image, so neither the number of loader processes, nor the
    order of loading, nor a resume changes what an image looks like in an epoch.
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
        """Return the image as it is seen in that epoch."""
        return self._transform(image_HWC, [self._seed, epoch, index])


class SeededTransform:
    """What an augmentation plugin built, made to depend on a key alone.

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
        """Return the changed image; the same key changes it in the same way.

        Raises:
            PluginError: if shape or type are not kept.
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
                f"The augmentation plugin '{self._name}' made a {changed.dtype} image of shape "
                f"{changed.shape} from a uint8 one of {self._shape}. Keep shape and type."
            )
        return changed


def preview_grid(
    augmentation: SeededAugmentation, images: Pixels, rows: np.ndarray[Any, Any], epochs: int = 8
) -> Pixels:
    """Return one picture (H, W, 3): the originals in the first column, then one column an epoch."""
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
