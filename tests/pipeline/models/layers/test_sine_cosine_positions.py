"""Sine-cosine positions against vit-pytorch, on any grid."""

from __future__ import annotations

import pytest
import torch
from vit_pytorch.simple_vit import posemb_sincos_2d

from patchline.pipeline.models.layers.sine_cosine_positions import (
    SineCosinePositionEmbedding,
    sine_cosine_positions,
)


@pytest.mark.parametrize("grid", [(14, 14), (3, 5)])
@pytest.mark.parametrize("embed_dim", [8, 96])
def test_equals_vit_pytorch(grid: tuple[int, int], embed_dim: int) -> None:
    """The positions are those of vit-pytorch's simple ViT, row by row."""
    expected_ND = posemb_sincos_2d(*grid, embed_dim)
    found_1ND = sine_cosine_positions(grid, embed_dim)
    torch.testing.assert_close(found_1ND[0], expected_ND, atol=1e-5, rtol=0)


@pytest.mark.parametrize("grid", [(4, 4), (6, 3)])
def test_positions_keep_float32_beside_rounded_tokens(grid: tuple[int, int]) -> None:
    """Tokens that autocast computed in bfloat16 are added to exact positions, as learned ones."""
    layer = SineCosinePositionEmbedding((4, 4), 16)
    tokens_BND = torch.ones(1, grid[0] * grid[1], 16, dtype=torch.bfloat16)
    marked_BND = layer(tokens_BND, grid)
    assert marked_BND.dtype == torch.float32
    torch.testing.assert_close(marked_BND[0] - 1, posemb_sincos_2d(*grid, 16), atol=1e-5, rtol=0)
