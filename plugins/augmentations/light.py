"""Small shifts, rotations and changes of scale; mirror images where that keeps the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from patchline.plugin_api import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    BatchRandom,
    BatchTransform,
)
from patchline.plugins.augmentations.standard import FlipConfig

if TYPE_CHECKING:
    import torch

_LARGE_ROTATION = 45.0
_LARGE_PIXELS = 48 * 48
"""Beyond it, a CPU moves one image after another faster than all of a batch at once."""
Share = Annotated[float, Field(ge=0, le=0.5)]


class LightConfig(FlipConfig):
    """Strength of the random changes."""

    shift: Share = 0.12
    """Largest shift in each direction, as a fraction of the side; by whole pixels."""

    scale: Share = 0.15
    """Largest change of scale, up or down, as a fraction."""

    rotation: Annotated[float, Field(ge=0, le=180)] = 15.0
    """Largest rotation in either direction, in degrees."""

    brightness: Share = 0.1
    """Largest change of brightness and contrast, as a fraction."""


def build_batch(config: LightConfig, context: AugmentationContext) -> BatchTransform:
    """Build the transform of whole batches."""
    from patchline.plugins.augmentations import affine_module as affine

    size = context.height, context.width
    are_large = context.height * context.width > _LARGE_PIXELS

    def transform(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
        placed = affine.placements(
            random,
            size,
            flip=bool(config.horizontal_flip),
            shift=config.shift,
            scale=config.scale,
            rotation=config.rotation,
        )
        light = affine.lights(random, brightness=config.brightness)
        if are_large and images_BHWC.device.type == "cpu":
            return affine.lit_in_turn(affine.move_in_turn(images_BHWC, placed), light)
        images_BCHW = affine.move(affine.as_floats(images_BHWC), placed)
        return affine.as_bytes(affine.lit(images_BCHW, light))

    return transform


def assumptions(config: LightConfig) -> Assumptions:
    """Return what must keep the class: nothing but large rotations."""
    if config.rotation <= _LARGE_ROTATION:
        return Assumptions()
    return Assumptions(changes=(f"rotations of up to {config.rotation:g} degrees",))


plugin = AugmentationPlugin(
    summary="Small shifts, rotations, changes of scale and brightness, and mirroring",
    paper="",
    config_class=LightConfig,
    build_batch=build_batch,
    assumptions=assumptions,
)
