"""Random crops of the padded image, and mirror images where that keeps the class.

`randaugment`, `trivialaugment` and `strong` have these settings, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from patchline.plugin_api import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    BatchRandom,
    BatchTransform,
    DataTraits,
    PluginConfig,
)

if TYPE_CHECKING:
    import torch


_LARGE_SHIFT = 0.25


class FlipConfig(PluginConfig):
    """Whether images are flipped."""

    horizontal_flip: bool | None = None
    """Flip a random half of the images horizontally; by default only if the data is
    mirror-symmetric."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Mirror only if a mirrored image still shows its class."""
        if self.horizontal_flip is not None:
            return self
        return self.model_copy(update={"horizontal_flip": traits.mirror_symmetric})


class CropAndFlipConfig(FlipConfig):
    """Size of the border, mirroring and erasing."""

    alternate_flips: bool = False
    """Mirror each image in every second epoch, instead of at random (arXiv 2404.00498, section
    3.6)."""

    pad: Annotated[float, Field(ge=0, le=0.5)] = 0.125
    """Border added by reflection before a random crop of the original size, as a fraction of the
    side: 4 pixels at 32."""

    erase: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of replacing a random rectangle by noise (random erasing, arXiv 1708.04896)."""


def assumptions(config: CropAndFlipConfig) -> Assumptions:
    """Return what must keep the class: nothing but large shifts."""
    large = config.pad > _LARGE_SHIFT
    return Assumptions(changes=(f"shifts of up to {config.pad:.0%} of a side",) if large else ())


def build_batch(config: CropAndFlipConfig, _context: AugmentationContext) -> BatchTransform:
    """Build the transform of whole batches."""
    from patchline.plugins.augmentations.batch_module import erase, flip_and_crop

    flip = bool(config.horizontal_flip)

    def transform(images_BHWC: torch.Tensor, random: BatchRandom) -> torch.Tensor:
        images_BHWC = flip_and_crop(
            images_BHWC, random, flip=flip, alternate=config.alternate_flips, pad=config.pad
        )
        if config.erase:
            images_BHWC = erase(images_BHWC, random, probability=config.erase)
        return images_BHWC

    return transform


plugin = AugmentationPlugin(
    summary="Padding, random crops and mirroring of whole batches: the fastest for small images",
    paper="arXiv 1512.03385, section 4.2",
    config_class=CropAndFlipConfig,
    build_batch=build_batch,
    assumptions=assumptions,
)
