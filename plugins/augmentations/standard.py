"""Random crops of the padded image, and mirror images where that keeps the class."""

from __future__ import annotations

from patchline.plugin_api import AugmentationPlugin
from patchline.plugins.augmentations.crop_and_flip import (
    CropAndFlipConfig,
    assumptions,
    build_batch,
)

plugin = AugmentationPlugin(
    summary="Padding, random crops and mirroring of whole batches: the fastest for small images",
    paper="arXiv 1512.03385, section 4.2",
    config_class=CropAndFlipConfig,
    build_batch=build_batch,
    assumptions=assumptions,
)
