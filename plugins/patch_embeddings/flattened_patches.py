"""Patches: cut, flatten, project (arXiv 2010.11929, equation 1; arXiv 2112.13492, section 3.1).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; P = patch_size² C, or five
times as much with shifted copies.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens

_COPIES = 5


class FlattenedPatches(nn.Module):
    """Project each flattened patch: `images_BCHW -> tokens_BND`.

    Args:
        patch_size: the side of a patch in pixels.
        context: the size of the images and the embedding.
        shifted: whether a patch also has the pixels of four copies of the image, shifted by half a
            patch, and is normalised.
    """

    def __init__(
        self, patch_size: int, context: PatchEmbeddingContext, *, shifted: bool = False
    ) -> None:
        super().__init__()
        self.patch_size, self.shifted = patch_size, shifted
        self.grid = (context.height // patch_size, context.width // patch_size)
        values = (_COPIES if shifted else 1) * patch_size**2 * context.channels
        self.norm = nn.LayerNorm(values) if shifted else nn.Identity()
        self.projection = nn.Linear(values, context.embed_dim)
        nn.init.trunc_normal_(self.projection.weight, std=values**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per patch, row by row."""
        p = self.patch_size
        if self.shifted:
            images_BCHW = with_shifted_copies(images_BCHW, p // 2)
        B, C, H, W = images_BCHW.shape
        rows, columns = H // p, W // p
        patches = images_BCHW.reshape(B, C, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        patches_BNP = patches.reshape(B, rows * columns, C * p * p)
        return PatchTokens(self.projection(self.norm(patches_BNP)), (rows, columns))


def with_shifted_copies(images_BCHW: torch.Tensor, shift: int) -> torch.Tensor:
    """Return the images and their copies moved left-up, right-up, left-down and right-down.

    Args:
        images_BCHW: the images.
        shift: the number of pixels to move in both directions; the gap is filled with zeros.

    Returns:
        The five concatenated over the channels, (B, 5 C, H, W).
    """
    height, width = images_BCHW.shape[2:]
    padded = functional.pad(images_BCHW, (shift, shift, shift, shift))
    copies = [
        padded[:, :, top : top + height, left : left + width]
        for top in (2 * shift, 0)
        for left in (2 * shift, 0)
    ]
    return torch.cat([images_BCHW, *copies], dim=1)
