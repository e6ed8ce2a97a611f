"""Conformance checks of an augmentation: it changes training images and keeps shape and dtype.

Shapes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from patchline.pipeline.data.batches.augmentation import BuiltAugmentation, Pixels
from patchline.pipeline.plugin_system.contract.checks import Rule, require
from patchline.plugin_api import (
    AugmentationContext,
    AugmentationPlugin,
    ConfigError,
    DataTraits,
    PluginConfig,
)

_CONTEXTS = (
    AugmentationContext(channels=3, height=32, width=32),
    AugmentationContext(channels=1, height=28, width=28),
    AugmentationContext(channels=3, height=24, width=40),
)
_ROWS = list(range(12))


class AugmentationChecks:
    """Conformance checks of an augmentation with the given settings."""

    def __init__(self, plugin: AugmentationPlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run.

        There are none for a plugin whose default settings are not enough, such as one that needs a
        file.
        """
        if self._refusal() is not None and self.settings == self.plugin.config_class():
            return []
        return [
            ("keeps_shape_and_type", self.keeps_shape_and_type),
            ("same_seed_same_image", self.same_seed_same_image),
            ("independent_of_the_batch", self.independent_of_the_batch),
            ("changes_something", self.changes_something),
            ("leaves_the_image_alone", self.leaves_the_image_alone),
        ]

    def refuse_settings(self) -> None:
        """Raise the plugin's own error if the settings fit no image."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def keeps_shape_and_type(self) -> None:
        """Colour, greyscale and non-square images stay uint8 of the same shape."""
        for context in _CONTEXTS:
            self._augmented(self._built(context), _images(context))

    def same_seed_same_image(self) -> None:
        """The same seed gives the same images, in this object and in a new one."""
        for context in _CONTEXTS:
            built, images = self._built(context), _images(context)
            first = self._augmented(built, images)
            for other in (built, self._built(context)):
                require(
                    np.array_equal(first, self._augmented(other, images)),
                    "The same seed gives different images. Draw from the transform's own "
                    "generators, and keep no state between images.",
                )

    def independent_of_the_batch(self) -> None:
        """An image looks the same alone and in a batch, wherever it is in the batch."""
        for context in _CONTEXTS:
            built, images = self._built(context), _images(context)
            together = self._augmented(built, images)
            alone = [built(image, 0, row) for row, image in zip(_ROWS, images, strict=True)]
            backwards = self._augmented(built, images[::-1].copy(), _ROWS[::-1])[::-1]
            require(
                np.array_equal(together, np.stack(alone)) and np.array_equal(together, backwards),
                "An image looks different in another batch. Draw one number for each image, and "
                "treat every image by itself.",
            )

    def changes_something(self) -> None:
        """Different seeds give different images, for at least one shape."""
        versions = []
        for context in _CONTEXTS:
            same = np.repeat(_images(context)[:1], len(_ROWS), axis=0)
            augmented = self._augmented(self._built(context), same)
            versions.append(len({image.tobytes() for image in augmented}))
        require(
            max(versions) > 1,
            f"{len(_ROWS)} seeds give the same image. Change the image, or add this check to "
            "expected_failed_checks.",
        )

    def leaves_the_image_alone(self) -> None:
        """The input images are not modified."""
        for context in _CONTEXTS:
            built, images = self._built(context), _images(context)
            built.by_image(images, 0, _ROWS)
            built.by_batch(torch.from_numpy(images), 0, torch.tensor(_ROWS))
            require(
                np.array_equal(images, _images(context)), "It modifies its input. Work on a copy."
            )

    def _augmented(
        self, built: BuiltAugmentation, images_BHWC: Pixels, rows: list[int] = _ROWS
    ) -> Pixels:
        images = torch.from_numpy(built.by_image(images_BHWC.copy(), 0, rows))
        augmented: Pixels = built.by_batch(images, 0, torch.tensor(rows)).numpy()
        return augmented

    def _built(self, context: AugmentationContext) -> BuiltAugmentation:
        resolved = self.settings.resolved_for(_traits(context))
        return BuiltAugmentation(self.plugin, resolved, context, "checked here", seed=0)

    def _refusal(self) -> ConfigError | None:
        """Return the error if the settings fit none of the images."""
        refusal = None
        for context in _CONTEXTS:
            try:
                self.settings.resolved_for(_traits(context))
            except ConfigError as error:
                refusal = error
            else:
                return None
        return refusal


def _traits(context: AugmentationContext) -> DataTraits:
    return DataTraits(
        context.channels, context.height, context.width, num_classes=2, mirror_symmetric=True
    )


def _images(context: AugmentationContext) -> Pixels:
    shape = (len(_ROWS), context.height, context.width, context.channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
