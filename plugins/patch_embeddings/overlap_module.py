"""Overlapping patches by one convolution (arXiv 2106.13797, section 3.2; arXiv 2103.15808).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.feature_map import tokens_of


class OverlapPatchEmbedding(nn.Module):
    """Convolve with a kernel larger than the stride, normalise: `images_BCHW -> tokens_BND`.

    The image is zero-padded by half a kernel, so the first token is centred on the first pixel, and
    the side of the grid is the image's side divided by the stride, rounded up.
    """

    def __init__(self, stride: int, kernel_size: int, context: PatchEmbeddingContext) -> None:
        super().__init__()
        self.grid = (-(-context.height // stride), -(-context.width // stride))
        self.projection = nn.Conv2d(
            context.channels, context.embed_dim, kernel_size, stride, padding=kernel_size // 2
        )
        self.norm = nn.LayerNorm(context.embed_dim)
        fan_in = context.channels * kernel_size**2
        nn.init.trunc_normal_(self.projection.weight, std=fan_in**-0.5)
        nn.init.zeros_(torch.as_tensor(self.projection.bias))

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        features_BDhw = self.projection(images_BCHW)
        tokens = tokens_of(features_BDhw)
        return tokens._replace(tokens_BND=self.norm(tokens.tokens_BND))
