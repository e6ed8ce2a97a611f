"""Patches by one strided convolution, the same map as the linear embedding.

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.feature_map import tokens_of


class ConvPatchEmbedding(nn.Module):
    """Convolve with kernel = stride = patch size: `images_BCHW -> tokens_BND`."""

    def __init__(self, patch_size: int, context: PatchEmbeddingContext) -> None:
        super().__init__()
        self.grid = (context.height // patch_size, context.width // patch_size)
        self.projection = nn.Conv2d(
            context.channels, context.embed_dim, kernel_size=patch_size, stride=patch_size
        )
        fan_in = context.channels * patch_size**2
        nn.init.trunc_normal_(self.projection.weight, std=fan_in**-0.5)
        nn.init.zeros_(torch.as_tensor(self.projection.bias))

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per patch, row by row."""
        features_BDhw = self.projection(images_BCHW)
        return tokens_of(features_BDhw)
