"""RandAugment: a few random operations of one magnitude, then padding, crops and mirroring."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from patchline.plugin_api import Assumptions, AugmentationContext, AugmentationPlugin
from patchline.plugins.augmentations import standard
from patchline.plugins.augmentations.standard import CropAndFlipConfig, build_batch

INVERTED = "inverted bright values (solarize)"


class RandAugmentConfig(CropAndFlipConfig):
    """Number and strength of the operations."""

    num_ops: Annotated[int, Field(ge=1, le=14)] = 2
    """Operations applied to each image."""

    magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    """Strength of every operation, from 0 to 30."""


def build(config: RandAugmentConfig, context: AugmentationContext) -> Any:
    """Build the transform of single images."""
    from patchline.plugins.augmentations.policy_module import Policy, randaugment_ranges

    ranges = randaugment_ranges(context.height, context.width)
    return Policy(ranges, config.num_ops, config.magnitude)


def assumptions(config: RandAugmentConfig) -> Assumptions:
    """Return what must keep the class; rotations are of 30 degrees at most."""
    solarized = (INVERTED,) if config.magnitude else ()
    return Assumptions(changes=(*solarized, *standard.assumptions(config).changes))


plugin = AugmentationPlugin(
    summary="A few random operations of fixed strength on each image, then random crops and flips",
    paper="arXiv 1909.13719",
    config_class=RandAugmentConfig,
    build=build,
    build_batch=build_batch,
    assumptions=assumptions,
)
