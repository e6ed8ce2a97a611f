"""Faulty augmentations, each for the check that finds it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from patchline.plugin_api import AugmentationPlugin, BatchRandom, PluginConfig
from tests.pipeline.plugin_system.contract.faults import Fault

Pixels = np.ndarray[Any, Any]
Change = Callable[[Pixels, np.random.Generator], Pixels]
BatchChange = Callable[[torch.Tensor, BatchRandom], torch.Tensor]


class NoSettings(PluginConfig):
    """There is nothing to set."""


def _brighter(image_HWC: Pixels, generator: np.random.Generator) -> Pixels:
    """Return the image with a random value added; the change without fault."""
    return image_HWC + np.uint8(generator.integers(1, 100))


def _composed(change: Change) -> Any:
    """Return an albumentations pipeline of one transform of our own."""
    import albumentations

    class Changed(albumentations.ImageOnlyTransform):  # type: ignore[misc]  # it has no annotations
        def apply(self, img: Pixels, **_: Any) -> Pixels:
            return change(img, self.random_generator)

    return albumentations.Compose([Changed(p=1.0)])


def _plugin(
    change: Change | None = None, build: Callable[..., Any] | None = None
) -> AugmentationPlugin[Any]:
    return AugmentationPlugin(
        summary="For the tests",
        paper="",
        config_class=NoSettings,
        build=build or (lambda *_: _composed(change or _brighter)),
    )


def _counting() -> Change:
    """Return a change that remembers how many images it has seen."""
    seen = []

    def change(image_HWC: Pixels, _: np.random.Generator) -> Pixels:
        seen.append(1)
        return image_HWC + np.uint8(len(seen))

    return change


def _own_draws() -> Change:
    """Return a change that draws from a generator that Patchline does not seed."""
    own = np.random.default_rng(0)
    return lambda image, _: _brighter(image, own)


def _in_place(image_HWC: Pixels, generator: np.random.Generator) -> Pixels:
    image_HWC[0, 0, 0] = generator.integers(256)
    return image_HWC


def _colour_only(image_HWC: Pixels, generator: np.random.Generator) -> Pixels:
    image_HWC = image_HWC.copy()
    image_HWC[:, :, 2] += np.uint8(generator.integers(1, 100))
    return image_HWC


def _global_random(image_HWC: Pixels, _: np.random.Generator) -> Pixels:
    return image_HWC + np.uint8(random.randrange(1, 100))  # noqa: S311 - the fault


def _nothing() -> Any:
    import albumentations

    return albumentations.Compose([])


def _smaller() -> Any:
    import albumentations

    return albumentations.Compose([albumentations.RandomCrop(16, 16)])


class Unseeded:
    """A callable with all that a Compose has, but no way to set its random state."""

    def __call__(self, image: Pixels) -> dict[str, Pixels]:
        return {"image": image}


def _batched(change: BatchChange) -> AugmentationPlugin[Any]:
    return AugmentationPlugin(
        summary="For the tests",
        paper="",
        config_class=NoSettings,
        build_batch=lambda *_: change,
    )


def _brighter_batch(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
    """Return the images with a random value added to each; the change without fault."""
    return images_BHWC + random.integers(1, 100, 1, 1, 1).to(torch.uint8)


def _mixed_batch(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
    return _brighter_batch(images_BHWC, random) ^ images_BHWC.roll(1, 0)


def _batch_in_place(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
    return images_BHWC.add_(random.integers(1, 100, 1, 1, 1).to(torch.uint8))


def _own_batch_draws() -> BatchChange:
    own = torch.Generator()
    return lambda images, _: images + torch.randint(1, 100, (), generator=own).to(torch.uint8)


SOUND = _plugin()
SOUND_BATCHED = _batched(_brighter_batch)
_SHAPE = "keeps_shape_and_type"
_SEED = "same_seed_same_image"
_BATCH = "independent_of_the_batch"
_CHANGES = "changes_something"
_ALONE = "leaves_the_image_alone"
FAULTS = [
    Fault(
        "not a Compose",
        _plugin(build=lambda *_: Unseeded()),
        _SHAPE,
        "a Unseeded, not an albumentations.Compose. Repair its build.",
    ),
    Fault(
        "another shape",
        _plugin(build=lambda *_: _smaller()),
        _SHAPE,
        "of shape (16, 16, 3) for a uint8 image of shape (32, 32, 3).",
    ),
    Fault(
        "another type",
        _plugin(lambda image, generator: _brighter(image, generator).astype(np.float32)),
        _SHAPE,
        "returned a float32 image",
    ),
    Fault("colour only", _plugin(_colour_only), _SHAPE, "It raised IndexError"),
    Fault(
        "state between images",
        _plugin(build=lambda *_: _composed(_counting())),
        _SEED,
        "keep no state between images.",
    ),
    Fault(
        "a generator of its own",
        _plugin(build=lambda *_: _composed(_own_draws())),
        _SEED,
        "Draw from the transform's own generators",
    ),
    Fault(
        "Python's generator",
        _plugin(_global_random),
        _SEED,
        "The same seed gives different images.",
    ),
    Fault(
        "another type of batch",
        _batched(lambda images, _: images.float()),
        _SHAPE,
        "returned a torch.float32 batch of shape (12, 32, 32, 3) on cpu",
    ),
    Fault(
        "not a function",
        _batched(None),  # type: ignore[arg-type]  # the fault
        _SHAPE,
        "returned a NoneType, not a function. Repair it.",
    ),
    Fault(
        "images of the batch mixed",
        _batched(_mixed_batch),
        _BATCH,
        "An image looks different in another batch. Draw one number for each image",
    ),
    Fault(
        "a batch's generator of its own",
        _batched(_own_batch_draws()),
        _SEED,
        "The same seed gives different images.",
    ),
    Fault(
        "a batch in place",
        _batched(_batch_in_place),
        _ALONE,
        "It modifies its input. Work on a copy.",
    ),
    Fault(
        "nothing",
        _plugin(build=lambda *_: _nothing()),
        _CHANGES,
        "12 seeds give the same image. Change the image, or add this check to ",
    ),
    Fault(
        "in place",
        _plugin(_in_place),
        _ALONE,
        "It modifies its input. Work on a copy.",
    ),
]
