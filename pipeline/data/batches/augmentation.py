"""Seed an augmentation for each sample: its random numbers depend only on (seed, epoch, image).

Each number is the SplitMix64 hash (doi:10.1145/2660193.2660195) of the seed, the epoch, the image's
row and a counter. It is computed in integers, so it is the same on every device, and it does not
depend on the other images of the batch. What a transform of single images draws is seeded by the
same three, and drawn on the CPU, whichever device computes with it.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation, plugin_errors
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.plugin_api import (
    AugmentationContext,
    AugmentationPlugin,
    BatchTransform,
    DrawnTransform,
    ImageSpec,
    PluginConfig,
)

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_FLOAT_BITS = 24
"""A float32 holds integers of this many bits exactly."""
_RANGE_BITS = 31


def _wrap_to_int64(word: int) -> int:
    """Return the int64 with the same bits as an unsigned 64-bit word."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; `>>` alone would repeat the sign."""
    return (words >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _hash(words: torch.Tensor) -> torch.Tensor:
    """Replace each int64 by its SplitMix64 output, in place; products wrap around."""
    words.bitwise_xor_(_shift_right(words, 30)).mul_(_wrap_to_int64(_FIRST))
    words.bitwise_xor_(_shift_right(words, 27)).mul_(_wrap_to_int64(_SECOND))
    return words.bitwise_xor_(_shift_right(words, 31))


def _hash_number(word: int) -> int:
    word %= _WORD
    word = (word ^ (word >> 30)) * _FIRST % _WORD
    word = (word ^ (word >> 27)) * _SECOND % _WORD
    return word ^ (word >> 31)


class CounterRandom:
    """Random numbers of the images of a batch in one epoch; see `patchline.plugin_api.BatchRandom`.

    Args:
        seed: the run's seed.
        epoch: the number of the epoch, from 0.
        rows_B: the images' rows in the store, int64. The numbers are on the device of this tensor.
    """

    def __init__(self, seed: int, epoch: int, rows_B: torch.Tensor) -> None:
        start = _hash_number(_hash_number(seed + _GOLDEN) + (epoch + 1) * _GOLDEN)
        self._keys_B = _hash((rows_B + 1) * _wrap_to_int64(_GOLDEN) + _wrap_to_int64(start))
        self._drawn = 0
        self._seed, self._epoch, self._rows_B = seed, epoch, rows_B
        self._alternations = 0

    def _words(self, count: int) -> torch.Tensor:
        """Return the next `count` words of every image: int64 (B, count)."""
        first = self._drawn + 1
        self._drawn += count
        counters = torch.arange(first, first + count, device=self._keys_B.device)
        return _hash(self._keys_B[:, None] + counters * _wrap_to_int64(_GOLDEN))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Return float32 numbers (B, *shape), evenly distributed from `low` to `high`."""
        words = _shift_right(self._words(math.prod(shape)), 64 - _FLOAT_BITS)
        unit = words.float() * 2.0**-_FLOAT_BITS
        return (unit * (high - low) + low).reshape(-1, *shape)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers (B, *shape), at least `low` and less than `high`.

        Raises:
            ValueError: if the range is empty or has 2**31 numbers or more.
        """
        if not 0 < high - low < 2**_RANGE_BITS:
            raise ValueError(f"integers({low}, {high}): high - low must be from 1 to 2**31 - 1.")
        words = _shift_right(self._words(math.prod(shape)), 32)
        return (_shift_right(words * (high - low), 32) + low).reshape(-1, *shape)

    def pixels(self, *shape: int) -> torch.Tensor:
        """Return uint8 numbers (B, *shape), evenly distributed from 0 to 255."""
        count = math.prod(shape)
        return self._words(-(-count // 8)).view(torch.uint8)[:, :count].reshape(-1, *shape)

    def alternating(self) -> torch.Tensor:
        """Return a bool for each image (B,), random in the first epoch, then alternating."""
        first_epoch = CounterRandom(self._seed, -1 - self._alternations, self._rows_B)
        self._alternations += 1
        return first_epoch.integers(0, 2).bool() ^ (self._epoch % 2 == 1)


Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class BuiltAugmentation:
    """Apply an augmentation plugin with its settings, reproducibly.

    How an image looks in an epoch does not depend on the number of workers, the order of loading,
    the other images of its batch, or a resume.

    Args:
        plugin: the augmentation.
        settings: its settings.
        context: the size of the images.
        name: the name of the plugin.
        seed: the run's seed.
        on_device: whether `by_batch` does the work of `by_image`, too, if the plugin can; see
            `patchline.plugin_api.DrawnTransform`.

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
        *,
        on_device: bool = False,
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
        self._draws = on_device and isinstance(built, DrawnTransform)
        self.seed = seed

    @property
    def changes_single_images(self) -> bool:
        """Whether `by_image` does anything, on the CPU and image by image."""
        return self._by_image is not None and not self._draws

    def __call__(self, image_HWC: Pixels, epoch: int, row: int) -> Pixels:
        """Return one image as augmented in that epoch."""
        images_BHWC = torch.from_numpy(self.by_image(np.array(image_HWC[None]), epoch, [row]))
        augmented: Pixels = self.by_batch(images_BHWC, epoch, torch.tensor([row]))[0].numpy()
        return augmented

    def by_image(self, images_BHWC: Pixels, epoch: int, rows: Sequence[int]) -> Pixels:
        """Apply the part of the augmentation that handles single images.

        Args:
            images_BHWC: the images, uint8.
            epoch: the number of the epoch, from 0.
            rows: the images' rows in the store.
        """
        if self._by_image is None or self._draws:
            return images_BHWC
        keys = ([self.seed, epoch, row] for row in rows)
        return np.stack([self._by_image(*item) for item in zip(images_BHWC, keys, strict=True)])

    def draw(self, epoch: int, rows: Sequence[int]) -> torch.Tensor | None:
        """Return what `by_batch` needs to do the work of `by_image`; None if it does not do it.

        Args:
            epoch: the number of the epoch, from 0.
            rows: the images' rows in the store.
        """
        if self._by_image is None or not self._draws:
            return None
        drawn = [self._by_image.draw([self.seed, epoch, row]) for row in rows]
        return torch.from_numpy(np.stack(drawn))

    def by_batch(
        self,
        images_BHWC: torch.Tensor,
        epoch: int,
        rows_B: torch.Tensor,
        drawn: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Apply the part of the augmentation that handles whole batches, after `by_image`.

        Args:
            images_BHWC: the images, uint8, on any device.
            epoch: the number of the epoch, from 0.
            rows_B: the images' rows in the store, int64, on the same device.
            drawn: what `draw` has returned for these images.
        """
        if self._by_image is not None and drawn is not None:
            images_BHWC = self._by_image.change(images_BHWC, drawn)
        if self._by_batch is None:
            return images_BHWC
        return self._by_batch(images_BHWC, CounterRandom(self.seed, epoch, rows_B))


class SeededAugmentation(BuiltAugmentation):
    """The augmentation of a run, from the name and the settings of its plugin."""

    def __init__(
        self, choice: PluginChoice, image: ImageSpec, seed: int, *, on_device: bool = False
    ) -> None:
        settings = settings_of("augmentation", choice, "augmentation")
        context = AugmentationContext(image.channels, image.height, image.width)
        plugin = load_augmentation(choice.name)
        super().__init__(plugin, settings, context, choice.name, seed, on_device=on_device)


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
        changed = self._transform(images_BHWC, random)
        return _check_batch(changed, images_BHWC, self._shape, self._name)


def _check_batch(
    changed: Any, images_BHWC: torch.Tensor, shape_HWC: tuple[int, ...], name: str
) -> torch.Tensor:
    """Return what a plugin has returned for a batch.

    Raises:
        PluginError: if it has another shape, type or device.
    """
    shape = (len(images_BHWC), *shape_HWC)
    if (
        not isinstance(changed, torch.Tensor)
        or changed.shape != shape
        or changed.dtype != torch.uint8
        or changed.device != images_BHWC.device
    ):
        raise PluginError(
            f"The augmentation plugin '{name}' returned {_describe(changed)} for a torch.uint8 "
            f"batch of shape {shape} on {images_BHWC.device}. Keep shape, type and device."
        )
    return changed


def _describe(value: Any) -> str:
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
        self._seed(key)
        changed: Pixels = self._transform(image=image_HWC)["image"]
        if changed.ndim == 2:  # noqa: PLR2004 - some transforms drop a single channel
            changed = changed[:, :, None]
        if changed.shape != self._shape or changed.dtype != np.uint8:
            raise PluginError(
                f"The augmentation plugin '{self._name}' returned a {changed.dtype} image of shape "
                f"{changed.shape} for a uint8 image of shape {self._shape}. Keep shape and type."
            )
        return changed

    def draw(self, key: list[int]) -> np.ndarray[Any, Any]:
        """Return what a call with this key draws; only of a `DrawnTransform`."""
        self._seed(key)
        drawn: np.ndarray[Any, Any] = self._transform.draw()
        return drawn

    def change(self, images_BHWC: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return the images that calls give which draw these numbers, up to rounding.

        Raises:
            PluginError: if the transform changes the shape, the type or the device.
        """
        changed = self._transform.change(images_BHWC, drawn)
        return _check_batch(changed, images_BHWC, self._shape, self._name)

    def _seed(self, key: list[int]) -> None:
        sequence = np.random.SeedSequence(key)
        generator = np.random.Generator(np.random.PCG64(sequence))
        python_generator = random.Random(int(generator.integers(2**63)))  # noqa: S311 - no secret
        self._transform.set_random_state(generator, python_generator)
