"""No augmentation: every image as it is."""

from __future__ import annotations

from typing import Any

from pipeline.plugin_api import AugmentationContext, AugmentationPlugin, PluginConfig


class NoneConfig(PluginConfig):
    """There is nothing to set."""


def build(_config: NoneConfig, _context: AugmentationContext) -> Any:
    """Build the transform that changes nothing."""
    import albumentations

    return albumentations.Compose([])


plugin = AugmentationPlugin(
    summary="No augmentation: every image as it is",
    paper="",
    config_class=NoneConfig,
    build=build,
    expected_failed_checks={"changes_something": "it is meant to change nothing"},
)
