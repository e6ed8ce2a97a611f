"""Conformance checks of an augmentation: it changes training images and keeps shape and dtype.

Shapes: H height, W width, C channels.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pipeline.data.augmentation import Pixels, SeededTransform
from pipeline.plugin_api import AugmentationContext, AugmentationPlugin, DataTraits, PluginConfig
from pipeline.plugin_system.contract.checks import Rule, require

_CONTEXTS = (
    AugmentationContext(channels=3, height=32, width=32),
    AugmentationContext(channels=1, height=28, width=28),
    AugmentationContext(channels=3, height=24, width=40),
)
_KEYS = range(12)


class AugmentationChecks:
    """Conformance checks of an augmentation with the given settings."""

    def __init__(self, plugin: AugmentationPlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [
            ("keeps_shape_and_type", self.keeps_shape_and_type),
            ("same_seed_same_image", self.same_seed_same_image),
            ("changes_something", self.changes_something),
            ("leaves_the_image_alone", self.leaves_the_image_alone),
        ]

    def refuse_settings(self) -> None:
        """Accept all settings."""

    def keeps_shape_and_type(self) -> None:
        """Colour, greyscale and non-square images stay uint8 of the same shape."""
        for context in _CONTEXTS:
            transform, image = self._transform(context), _image(context)
            for key in _KEYS:
                transform(image, [key])

    def same_seed_same_image(self) -> None:
        """The same seed gives the same image, in this object and in a new one."""
        for context in _CONTEXTS:
            transform, again, image = (
                self._transform(context),
                self._transform(context),
                _image(context),
            )
            first = [transform(image, [key]) for key in _KEYS]
            for other in (transform, again):
                second = [other(image, [key]) for key in reversed(_KEYS)][::-1]
                require(
                    all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)),
                    "The same seed gives different images. Draw from the transform's own "
                    "generators, and keep no state between images.",
                )

    def changes_something(self) -> None:
        """Different seeds give different images, for at least one shape."""
        versions = [
            {self._transform(context)(_image(context), [key]).tobytes() for key in _KEYS}
            for context in _CONTEXTS
        ]
        require(
            max(len(found) for found in versions) > 1,
            f"{len(_KEYS)} seeds give the same image. Change the image, or add this check to "
            "expected_failed_checks.",
        )

    def leaves_the_image_alone(self) -> None:
        """The input image is not modified."""
        for context in _CONTEXTS:
            transform, image = self._transform(context), _image(context)
            before = image.copy()
            for key in _KEYS:
                transform(image, [key])
            require(np.array_equal(image, before), "It modifies its input. Work on a copy.")

    def _transform(self, context: AugmentationContext) -> SeededTransform:
        os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would contact a registry
        traits = DataTraits(
            context.channels, context.height, context.width, num_classes=2, mirror_symmetric=True
        )
        built = self.plugin.build(self.settings.resolved_for(traits), context)
        return SeededTransform(built, context, "checked here")


def _image(context: AugmentationContext) -> Pixels:
    shape = (context.height, context.width, context.channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
