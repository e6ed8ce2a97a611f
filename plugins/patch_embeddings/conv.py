"""A convolution with kernel = stride = patch size, the same map as linear.

Settings and plugin; the layer is in `patchline.plugins.patch_embeddings.conv_module`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig, default_patch_size

if TYPE_CHECKING:
    import torch


def build(config: PatchGridConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from patchline.plugins.patch_embeddings.conv_module import ConvPatchEmbedding

    patch_size = config.patch_size or default_patch_size(context.height, context.width)
    return ConvPatchEmbedding(patch_size, context)


plugin = PatchEmbeddingPlugin(
    summary="A convolution with kernel = stride = patch size, the same map as linear",
    paper="arXiv 2010.11929, section 3.1",
    config_class=PatchGridConfig,
    build=build,
)
