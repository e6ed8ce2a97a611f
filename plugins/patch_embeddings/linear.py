"""Cut into patches, flatten, project linearly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig, default_patch_size

if TYPE_CHECKING:
    import torch


def build(config: PatchGridConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from patchline.plugins.patch_embeddings.flattened_patches import FlattenedPatches

    patch_size = config.patch_size or default_patch_size(context.height, context.width)
    return FlattenedPatches(patch_size, context)


plugin = PatchEmbeddingPlugin(
    summary="Cut into patches, flatten, project linearly",
    paper="arXiv 2010.11929, section 3.1",
    config_class=PatchGridConfig,
    build=build,
)
