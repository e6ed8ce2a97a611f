"""Patches by unfolding: cut, flatten, project (arXiv 2010.11929, equation 1).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; P = patch_size² C.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens


class LinearPatchEmbedding(nn.Module):
    """Project each flattened patch: `images_BCHW -> tokens_BND`."""

    def __init__(self, patch_size: int, context: PatchEmbeddingContext) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.grid = (context.height // patch_size, context.width // patch_size)
        self.projection = nn.Linear(patch_size**2 * context.channels, context.embed_dim)
        nn.init.trunc_normal_(self.projection.weight, std=self.projection.in_features**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per patch, row by row."""
        B, C, H, W = images_BCHW.shape
        p = self.patch_size
        rows, columns = H // p, W // p
        patches = images_BCHW.reshape(B, C, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        patches_BNP = patches.reshape(B, rows * columns, C * p * p)
        return PatchTokens(self.projection(patches_BNP), (rows, columns))
