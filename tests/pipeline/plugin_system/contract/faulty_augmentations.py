"""Faulty augmentations, each with its check and a part of what the check says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import albumentations
import numpy as np
import torch

from patchline.plugin_api import AugmentationPlugin, PluginConfig

Pixels = np.ndarray[Any, Any]
Change = Callable[[Pixels, np.random.Generator], Pixels]
_OWN, _OWN_OF_TORCH = np.random.default_rng(0), torch.Generator()


class _Changed(albumentations.ImageOnlyTransform):  # type: ignore[misc]  # it has no annotations
    def __init__(self, change: Change) -> None:
        super().__init__(p=1.0)
        self.change = change

    def apply(self, img: Pixels, **_: Any) -> Pixels:
        return self.change(img, self.random_generator)


def _plugin(change: Change) -> Any:
    return _building(lambda: albumentations.Compose([_Changed(change)]))


def _building(build: Callable[[], Any]) -> Any:
    return AugmentationPlugin("For the tests", "", PluginConfig, lambda *_: build())


class _DrawnOtherwise(albumentations.Compose):  # type: ignore[misc]  # it has no annotations
    def draw(self) -> Pixels:
        return np.array([float(self.random_generator.integers(256))])

    def change(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return images ^ drawn.byte()[:, :, None, None]


def _batched(change: Callable[[torch.Tensor, Any], torch.Tensor] | None) -> Any:
    build: Any = lambda *_: change  # noqa: E731 - its type is part of the fault
    return AugmentationPlugin("For the tests", "", PluginConfig, build_batch=build)


def _drawn(random: Any) -> torch.Tensor:
    """Return a number for each image."""
    numbers: torch.Tensor = random.integers(1, 100, 1, 1, 1)
    return numbers.to(torch.uint8)


def _in_place(image_HWC: Pixels, generator: np.random.Generator) -> Pixels:
    image_HWC[0, 0, 0] = generator.integers(256)
    return image_HWC


STILL = _building(lambda: albumentations.Compose([]))
"""It changes nothing."""
_SHAPE, _SEED = "keeps_shape_and_type", "same_seed_same_image"
FAULTS = {
    "not a Compose": (_building(object), _SHAPE, "a object, not an albumentations.Compose."),
    "another shape": (
        _building(lambda: albumentations.Compose([albumentations.RandomCrop(16, 16)])),
        _SHAPE,
        "of shape (16, 16, 3) for a uint8 image of shape (32, 32, 3).",
    ),
    "another type": (_plugin(lambda image, _: image / 2), _SHAPE, "returned a float"),
    "colour only": (_plugin(lambda image, _: image * [1, 0, 1]), _SHAPE, ""),
    "a generator of its own": (
        _plugin(lambda image, _: image + np.uint8(_OWN.integers(100))), _SEED, "own generators"
    ),
    "Python's generator": (
        _plugin(lambda image, _: image + np.uint8(random.randrange(100))),  # noqa: S311 - the fault
        _SEED,
        "different images.",
    ),
    "a batch's generator of its own": (
        _batched(lambda images, _: images ^ torch.randint(99, (), generator=_OWN_OF_TORCH).byte()),
        _SEED,
        "different images.",
    ),
    "another type of batch": (
        _batched(lambda images, _: images.float()),
        _SHAPE,
        "returned a torch.float32 batch of shape (12, 32, 32, 3) on cpu",
    ),
    "not a function": (_batched(None), _SHAPE, "returned a NoneType, not a function."),
    "images of the batch mixed": (
        _batched(lambda images, random: images + _drawn(random) ^ images.roll(1, 0)),
        "independent_of_the_batch",
        "An image looks different in another batch.",
    ),
    "drawn otherwise for a GPU": (
        _building(lambda: _DrawnOtherwise([_Changed(lambda image, g: image ^ g.bytes(1)[0])])),
        "same_on_a_gpu",
        "Draw in the order of a call, and compute the same.",
    ),
    "nothing": (STILL, "changes_something", "12 seeds give the same image."),
    "in place": (_plugin(_in_place), "leaves_the_image_alone", "It modifies its input."),
    "a batch in place": (
        _batched(lambda images, random: images.add_(_drawn(random))),
        "leaves_the_image_alone",
        "It modifies its input.",
    ),
}  # fmt: skip
