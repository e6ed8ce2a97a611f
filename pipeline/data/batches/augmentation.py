"""Seed an augmentation for each sample: it depends only on (seed, epoch, image).

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.counter_random import CounterRandom
from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation, plugin_errors
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.plugin_api import (
    AugmentationContext,
    AugmentationPlugin,
    BatchTransform,
    ImageSpec,
    PluginConfig,
)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class BuiltAugmentation:
    """Apply an augmentation plugin with its settings, reproducibly.

    How an image looks in an epoch does not depend on the number of workers, the order of loading,
    the other images of its batch, or a resume.

    Raises:
        PluginError: if the plugin builds neither part, or building fails.
    """

    def __init__(
        self,
        plugin: AugmentationPlugin[Any],
        settings: PluginConfig,
        context: AugmentationContext,
        name: str,
        seed: int,
    ) -> None:
        os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would contact a registry
        self._by_image: SeededTransform | None = None
        self._by_batch: SeededBatchTransform | None = None
        with plugin_errors("augmentation", name, "failed to build"):
            built = plugin.build(settings, context)
            if plugin.build_batch is not None:
                batched = plugin.build_batch(settings, context)
                self._by_batch = SeededBatchTransform(batched, context, name)
        if built is not None or plugin.build_batch is None:
            self._by_image = SeededTransform(built, context, name)
        self.seed = seed

    @property
    def changes_single_images(self) -> bool:
        """Whether `by_image` does anything, on the CPU and image by image."""
        return self._by_image is not None

    def __call__(self, image_HWC: Pixels, epoch: int, row: int) -> Pixels:
        """Return one image as augmented in that epoch."""
        images_BHWC = torch.from_numpy(self.by_image(np.array(image_HWC[None]), epoch, [row]))
        augmented: Pixels = self.by_batch(images_BHWC, epoch, torch.tensor([row]))[0].numpy()
        return augmented

    def by_image(self, images_BHWC: Pixels, epoch: int, rows: Sequence[int]) -> Pixels:
        """Apply the part of the augmentation that handles single images.

        Args:
            images_BHWC: uint8.
            epoch: starts at 0.
            rows: the images' rows in the store.
        """
        if self._by_image is None:
            return images_BHWC
        keys = ([self.seed, epoch, row] for row in rows)
        return np.stack([self._by_image(*item) for item in zip(images_BHWC, keys, strict=True)])

    def by_batch(self, images_BHWC: torch.Tensor, epoch: int, rows_B: torch.Tensor) -> torch.Tensor:
        """Apply the part of the augmentation that handles whole batches, after `by_image`.

        Args:
            images_BHWC: uint8, on any device.
            epoch: starts at 0.
            rows_B: int64; the images' rows in the store, on the same device.
        """
        if self._by_batch is None:
            return images_BHWC
        return self._by_batch(images_BHWC, CounterRandom(self.seed, epoch, rows_B))


class SeededAugmentation(BuiltAugmentation):
    """The augmentation of a run, from the name and the settings of its plugin."""

    def __init__(self, choice: PluginChoice, image: ImageSpec, seed: int) -> None:
        settings = settings_of("augmentation", choice, "augmentation")
        context = AugmentationContext(image.channels, image.height, image.width)
        super().__init__(load_augmentation(choice.name), settings, context, choice.name, seed)


class SeededBatchTransform:
    """The batched transform of an augmentation plugin, with its results checked.

    Raises:
        PluginError: if the plugin did not build a function.
    """

    def __init__(self, transform: BatchTransform, context: AugmentationContext, name: str) -> None:
        if not callable(transform):
            raise PluginError(
                f"build_batch of the augmentation plugin '{name}' returned a "
                f"{type(transform).__name__}, not a function. Repair it."
            )
        self._transform = transform
        self._shape = (context.height, context.width, context.channels)
        self._name = name

    def __call__(self, images_BHWC: torch.Tensor, random: CounterRandom) -> torch.Tensor:
        """Return the augmented images.

        Raises:
            PluginError: if the transform changes the shape, the type or the device.
        """
        shape = (len(images_BHWC), *self._shape)
        changed = self._transform(images_BHWC, random)
        if (
            not isinstance(changed, torch.Tensor)
            or changed.shape != shape
            or changed.dtype != torch.uint8
            or changed.device != images_BHWC.device
        ):
            raise PluginError(
                f"The augmentation plugin '{self._name}' returned {_described(changed)} for a "
                f"torch.uint8 batch of shape {shape} on {images_BHWC.device}. Keep shape, type and "
                "device."
            )
        return changed


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a {value.dtype} batch of shape {tuple(value.shape)} on {value.device}"


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
