"""No augmentation: every image as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    BatchRandom,
    BatchTransform,
    PluginConfig,
)

if TYPE_CHECKING:
    import torch


class NoneConfig(PluginConfig):
    """There is nothing to set."""


def build_batch(_config: NoneConfig, _context: AugmentationContext) -> BatchTransform:
    """Build the transform that changes nothing."""

    def transform(images_BHWC: torch.Tensor, _random: BatchRandom) -> torch.Tensor:
        return images_BHWC

    return transform


plugin = AugmentationPlugin(
    summary="No augmentation: every image as it is",
    paper="",
    config_class=NoneConfig,
    build_batch=build_batch,
    assumptions=lambda _config: Assumptions(),
    expected_failed_checks={"changes_something": "it is meant to change nothing"},
)
