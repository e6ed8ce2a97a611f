"""A convolution with kernel = stride = patch size, the same map as linear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig, default_patch_size

if TYPE_CHECKING:
    import torch


def build(config: PatchGridConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from torch import nn

    from patchline.plugins.patch_embeddings.feature_map import (
        FeatureMapEmbedding,
        initialize_projection,
    )

    size = config.patch_size or default_patch_size(context.height, context.width)
    projection = nn.Conv2d(context.channels, context.embed_dim, kernel_size=size, stride=size)
    return FeatureMapEmbedding(
        (context.height // size, context.width // size), initialize_projection(projection)
    )


plugin = PatchEmbeddingPlugin(
    summary="A convolution with kernel = stride = patch size, the same map as linear",
    paper="arXiv 2010.11929, section 3.1",
    config_class=PatchGridConfig,
    build=build,
)
