"""A random policy, crops, mirroring and random erasing, for long training on few images."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from patchline.plugin_api import Assumptions, AugmentationContext, AugmentationPlugin
from patchline.plugins.augmentations import randaugment, trivialaugment
from patchline.plugins.augmentations.standard import build_batch


class StrongConfig(randaugment.RandAugmentConfig):
    """The policy, and everything that follows it."""

    policy: Literal["trivialaugment", "randaugment"] = "trivialaugment"
    """Policy that chooses the operations; num_ops and magnitude are for randaugment only."""

    erase: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Probability of replacing a random rectangle by noise (random erasing, arXiv 1708.04896)."""


def build(config: StrongConfig, context: AugmentationContext) -> Any:
    """Build the transform of single images."""
    if config.policy == "randaugment":
        return randaugment.build(config, context)
    return trivialaugment.build(trivialaugment.TrivialAugmentConfig(), context)


def assumptions(config: StrongConfig) -> Assumptions:
    """Return what the policy assumes."""
    if config.policy == "randaugment":
        return randaugment.assumptions(config)
    return trivialaugment.assumptions(config)


plugin = AugmentationPlugin(
    summary="TrivialAugment or RandAugment, random crops, flips and random erasing",
    paper="arXiv 2103.10158, arXiv 1708.04896",
    config_class=StrongConfig,
    build=build,
    build_batch=build_batch,
    assumptions=assumptions,
)
