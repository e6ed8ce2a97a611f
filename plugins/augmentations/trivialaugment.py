"""TrivialAugment: one random operation of random strength, then padding, crops and mirroring."""

from __future__ import annotations

from typing import Any

from patchline.plugin_api import Assumptions, AugmentationContext, AugmentationPlugin
from patchline.plugins.augmentations import standard
from patchline.plugins.augmentations.randaugment import INVERTED
from patchline.plugins.augmentations.standard import CropAndFlipConfig, build_batch


class TrivialAugmentConfig(CropAndFlipConfig):
    """Nothing to tune but the crops, mirroring and erasing."""


def build(_config: TrivialAugmentConfig, context: AugmentationContext) -> Any:
    """Build the transform of single images."""
    from patchline.plugins.augmentations.policy_module import Policy, trivialaugment_ranges

    return Policy(trivialaugment_ranges(context.height, context.width), num_ops=1, magnitude=None)


def assumptions(config: CropAndFlipConfig) -> Assumptions:
    """Return what must keep the class."""
    rotations = "rotations of up to 135 degrees"  # of trivialaugment_ranges, which needs cv2
    return Assumptions(changes=(rotations, INVERTED, *standard.assumptions(config).changes))


plugin = AugmentationPlugin(
    summary="One random operation of random strength on each image, then random crops and flips",
    paper="arXiv 2103.10158",
    config_class=TrivialAugmentConfig,
    build=build,
    build_batch=build_batch,
    assumptions=assumptions,
)
