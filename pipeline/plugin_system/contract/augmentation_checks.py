"""Conformance checks of an augmentation: it changes training images and keeps shape and dtype.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from patchline.pipeline.data.batches.augmentation import BuiltAugmentation, Pixels
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckedPlugin,
    checks,
    find_accepted_side,
    require,
)
from patchline.pipeline.plugin_system.contract.module_checks import ImageShape
from patchline.pipeline.plugin_system.contract.settings_checks import traits
from patchline.plugin_api import AugmentationContext, ConfigError

_SHAPES = (ImageShape(3, 32, 32), ImageShape(1, 28, 28), ImageShape(3, 24, 40))
_ROWS = list(range(12))
_NEAR = 0.9
"""Share of the values that agree; an operation may enlarge a difference of one level before it."""


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of an augmentation with the given settings.

    There are none for a plugin whose default settings are not enough, such as one that needs a
    file.
    """
    try:
        find_accepted_side(lambda side: subject.settings.resolved_for(traits(side)))
    except ConfigError:
        return []
    return checks(
        subject,
        keeps_shape_and_type,
        same_seed_same_image,
        independent_of_the_batch,
        changes_something,
        leaves_the_image_alone,
        same_on_a_gpu,
    )


def keeps_shape_and_type(subject: CheckedPlugin) -> None:
    """Colour, greyscale and non-square images stay uint8 of the same shape."""
    for built, images in _samples(subject):
        _augment(built, images)


def same_seed_same_image(subject: CheckedPlugin) -> None:
    """The same seed gives the same images, in this object and in a new one."""
    for (built, images), (other, _) in zip(_samples(subject), _samples(subject), strict=True):
        first = _augment(built, images)
        require(
            all(np.array_equal(first, _augment(each, images)) for each in (built, other)),
            "The same seed gives different images. Draw from the transform's own "
            "generators, and keep no state between images.",
        )


def independent_of_the_batch(subject: CheckedPlugin) -> None:
    """An image looks the same alone and in a batch, wherever it is in the batch."""
    for built, images in _samples(subject):
        together = _augment(built, images)
        alone = [built(image, 0, row) for row, image in zip(_ROWS, images, strict=True)]
        backwards = _augment(built, images[::-1].copy(), _ROWS[::-1])[::-1]
        require(
            np.array_equal(together, np.stack(alone)) and np.array_equal(together, backwards),
            "An image looks different in another batch. Draw one number for each image, and "
            "treat every image by itself.",
        )


def changes_something(subject: CheckedPlugin) -> None:
    """Different seeds give different images, for at least one shape."""
    versions = []
    for built, images in _samples(subject):
        augmented = _augment(built, np.repeat(images[:1], len(_ROWS), axis=0))
        versions.append(len({image.tobytes() for image in augmented}))
    require(
        max(versions) > 1,
        f"{len(_ROWS)} seeds give the same image. Change the image, or add this check to "
        "expected_failed_checks.",
    )


def leaves_the_image_alone(subject: CheckedPlugin) -> None:
    """The input images are not modified."""
    for built, images in _samples(subject):
        before = images.copy()
        built.by_image(images, 0, _ROWS)
        built.by_batch(torch.from_numpy(images), 0, torch.tensor(_ROWS))
        require(np.array_equal(images, before), "It modifies its input. Work on a copy.")


def same_on_a_gpu(subject: CheckedPlugin) -> None:
    """Of a transform with `draw` and `change`, both do what a call does: to one level, mostly."""
    pairs = zip(_samples(subject), _samples(subject, on_device=True), strict=True)
    for (by_image, images), (by_batch, _) in pairs:
        drawn = by_batch.draw(0, _ROWS)
        if drawn is None:
            return
        rows_B, before = torch.tensor(_ROWS), images.copy()
        changed = by_batch.by_batch(torch.from_numpy(images), 0, rows_B, drawn).numpy()
        require(np.array_equal(images, before), "`change` modifies its input. Work on a copy.")
        differences = np.abs(changed.astype(int) - _augment(by_image, images).astype(int))
        near = float(np.mean(differences <= 1))
        require(
            near >= _NEAR,
            f"Only {near:.0%} of the values that `draw` and `change` give are those of a call, to "
            "one level of 255. Draw in the order of a call, and compute the same.",
        )


def _samples(
    subject: CheckedPlugin, *, on_device: bool = False
) -> Iterator[tuple[BuiltAugmentation, Pixels]]:
    """Yield the augmentation built for each shape, with images."""
    for shape in _SHAPES:
        resolved = subject.settings.resolved_for(shape.traits)
        context = AugmentationContext(*shape)
        images = np.random.default_rng(0).integers(
            0, 256, (len(_ROWS), shape.height, shape.width, shape.channels), dtype=np.uint8
        )
        name = "checked here"
        built = BuiltAugmentation(
            subject.plugin, resolved, context, name, seed=0, on_device=on_device
        )
        yield built, images


def _augment(built: BuiltAugmentation, images_BHWC: Pixels, rows: list[int] = _ROWS) -> Pixels:
    images = torch.from_numpy(built.by_image(images_BHWC.copy(), 0, rows))
    augmented: Pixels = built.by_batch(images, 0, torch.tensor(rows)).numpy()
    return augmented
