"""Patches of any size from one stored kernel (arXiv 2212.08013, sections 3.1 and 3.4).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid; K the side of
the stored kernel, P that of a patch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens


class FlexiPatchEmbedding(nn.Module):
    """Convolve with the stored kernel, resized to the patches: `images_BCHW -> tokens_BND`.

    In training with several patch sizes, each call draws one from torch's generator and returns the
    grid that belongs to it; `torch.compile` then breaks the graph at the draw. In evaluation the
    patch size and the grid are always the same.

    Args:
        patch_size: the side of a patch in evaluation, in pixels.
        patch_sizes: those to draw from in training, in pixels; empty for `patch_size` alone.
        kernel_size: K, the side of the stored kernel, in pixels.
        context: the size of the images and the embedding.
    """

    def __init__(
        self,
        patch_size: int,
        patch_sizes: tuple[int, ...],
        kernel_size: int,
        context: PatchEmbeddingContext,
    ) -> None:
        super().__init__()
        self.patch_size, self.patch_sizes, self.kernel_size = patch_size, patch_sizes, kernel_size
        self.image_size = (context.height, context.width)
        self.grid = self._grid(self.patch_size)
        self.kernel_DCKK = nn.Parameter(
            torch.empty(context.embed_dim, context.channels, self.kernel_size, self.kernel_size)
        )
        self.bias = nn.Parameter(torch.zeros(context.embed_dim))
        nn.init.trunc_normal_(
            self.kernel_DCKK, std=(context.channels * self.kernel_size**2) ** -0.5
        )
        for resized in {patch_size, *patch_sizes} - {kernel_size}:
            matrix_PK = resize_matrix(kernel_size, resized).to(self.kernel_DCKK)
            self.register_buffer(_buffer_name(resized), matrix_PK, persistent=False)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per patch, row by row."""
        patch_size = self._draw() if self.training and self.patch_sizes else self.patch_size
        kernel_DCPP = self.resized_kernel(patch_size)
        features_BDhw = functional.conv2d(images_BCHW, kernel_DCPP, self.bias, stride=patch_size)
        return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), self._grid(patch_size))

    def resized_kernel(self, patch_size: int) -> torch.Tensor:
        """Return the stored kernel for one of the patch sizes of the settings, (D, C, P, P)."""
        if patch_size == self.kernel_size:
            return self.kernel_DCKK
        matrix_PK = self.get_buffer(_buffer_name(patch_size))
        return matrix_PK @ self.kernel_DCKK @ matrix_PK.T

    def _draw(self) -> int:
        drawn = torch.randint(len(self.patch_sizes), (), device="cpu")
        return self.patch_sizes[int(drawn)]

    def _grid(self, patch_size: int) -> tuple[int, int]:
        height, width = self.image_size
        return (height // patch_size, width // patch_size)


def resize_matrix(stored_size: int, patch_size: int) -> torch.Tensor:
    """Return the pseudo-inverse of bilinear resizing along one side, (P, K) in float64.

    Bilinear resizing is separable, and so is its pseudo-inverse: two small matrices, one per side,
    replace one with P² rows and K² columns.
    """
    # One picture with a row for each pixel: torch 2.15 resizes pictures of width 1 wrongly.
    each_pixel_11KK = torch.eye(stored_size, dtype=torch.float64, device="cpu")[None, None]
    resized_11KP = functional.interpolate(
        each_pixel_11KK,
        size=(stored_size, patch_size),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )
    resized_KP = resized_11KP[0, 0]  # the transpose of B
    pseudo_inverse_PK: torch.Tensor = torch.linalg.pinv(resized_KP)
    return pseudo_inverse_PK


def _buffer_name(patch_size: int) -> str:
    return f"resize_to_{patch_size}"
