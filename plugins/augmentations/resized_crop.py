"""Random parts of the image, enlarged to its size; flips, changes of color, and erasing."""

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

_SMALL_PART = 0.5
Share = Annotated[float, Field(ge=0, lt=1)]


class ResizedCropConfig(FlipConfig):
    """Size and shape of the part that is shown, and what else changes."""

    smallest_area: Annotated[float, Field(gt=0, le=1)] = 0.35
    """Smallest area of the part that is shown, as a fraction of the image."""

    largest_ratio: Annotated[float, Field(ge=1, le=10)] = 4 / 3
    """Largest ratio of its sides, in either direction, for a square image."""

    brightness: Share = 0.3
    """Largest change of brightness, as a fraction."""

    contrast: Share = 0.3
    """Largest change of contrast, as a fraction."""

    saturation: Share = 0.3
    """Largest change of the saturation of colours, as a fraction."""

    erase: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of replacing a random rectangle by noise (random erasing, arXiv 1708.04896)."""


def build_batch(config: ResizedCropConfig, _context: AugmentationContext) -> BatchTransform:
    """Build the transform of whole batches."""
    from patchline.plugins.augmentations.affine_module import as_bytes, as_floats
    from patchline.plugins.augmentations.batch_module import enlarge, erase, recolor, windows

    def transform(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
        windows_B4 = windows(
            images_BHWC.shape[1:3],
            random,
            smallest_area=config.smallest_area,
            largest_ratio=config.largest_ratio,
        )
        images_BCHW = enlarge(
            as_floats(images_BHWC), windows_B4, random, flip=bool(config.horizontal_flip)
        )
        images_BCHW = recolor(
            images_BCHW,
            random,
            brightness=config.brightness,
            contrast=config.contrast,
            saturation=config.saturation,
        )
        changed_BHWC = as_bytes(images_BCHW)
        if config.erase:
            changed_BHWC = erase(changed_BHWC, random, probability=config.erase)
        return changed_BHWC

    return transform


def assumptions(config: ResizedCropConfig) -> Assumptions:
    """Return what must keep the class: nothing but small parts of the image."""
    if config.smallest_area >= _SMALL_PART:
        return Assumptions()
    return Assumptions(changes=(f"crops to as little as {config.smallest_area:.0%} of the area",))


plugin = AugmentationPlugin(
    summary="Random parts of the image, enlarged to its size; flips and changes of colour",
    paper="arXiv 1409.4842, section 6",
    config_class=ResizedCropConfig,
    build_batch=build_batch,
    assumptions=assumptions,
)
