"""Sine-cosine positions against vit-pytorch, on any grid."""

from __future__ import annotations

import math

import pytest
import torch
from vit_pytorch.simple_vit import posemb_sincos_2d

from patchline.pipeline.layers.sine_cosine_positions import (
    SineCosinePositionEmbedding,
    sine_cosine_positions,
)


@pytest.mark.parametrize("grid", [(14, 14), (3, 5), (1, 7)])
@pytest.mark.parametrize("embed_dim", [8, 96, 384])
def test_equals_vit_pytorch(grid: tuple[int, int], embed_dim: int) -> None:
    """The positions are those of vit-pytorch's simple ViT, row by row."""
    expected_ND = posemb_sincos_2d(*grid, embed_dim)
    found_1ND = sine_cosine_positions(grid, embed_dim)
    torch.testing.assert_close(found_1ND[0], expected_ND, atol=1e-5, rtol=0)


def test_the_smallest_embedding_has_one_frequency() -> None:
    """With D = 4 a token holds sine and cosine of its column, then of its row, in radians."""
    found_ND = sine_cosine_positions((2, 3), 4)[0]
    expected = [
        [math.sin(x), math.cos(x), math.sin(y), math.cos(y)] for y in range(2) for x in range(3)
    ]
    torch.testing.assert_close(found_ND, torch.tensor(expected))


@pytest.mark.parametrize("prefix_tokens", [0, 1, 4])
@pytest.mark.parametrize("grid", [(4, 4), (6, 3)])
def test_adds_the_positions_of_the_grid_that_it_is_given(
    grid: tuple[int, int], prefix_tokens: int
) -> None:
    """On its own grid and on any other each patch is marked; tokens in front stay as they are."""
    layer = SineCosinePositionEmbedding((4, 4), 16, prefix_tokens)
    tokens_BND = torch.randn(2, prefix_tokens + grid[0] * grid[1], 16)
    marked_BND = layer(tokens_BND, grid)
    assert torch.equal(marked_BND[:, :prefix_tokens], tokens_BND[:, :prefix_tokens])
    torch.testing.assert_close(
        marked_BND[:, prefix_tokens:],
        tokens_BND[:, prefix_tokens:] + posemb_sincos_2d(*grid, 16),
        atol=1e-5,
        rtol=0,
    )


def test_nothing_is_learned_or_saved() -> None:
    """The layer has neither parameters nor entries in a file of weights."""
    layer = SineCosinePositionEmbedding((4, 4), 16)
    assert not list(layer.parameters())
    assert not layer.state_dict()


@pytest.mark.parametrize("grid", [(4, 4), (6, 3)])
def test_positions_keep_float32_beside_rounded_tokens(grid: tuple[int, int]) -> None:
    """Tokens that autocast computed in bfloat16 are added to exact positions, as learned ones."""
    layer = SineCosinePositionEmbedding((4, 4), 16)
    tokens_BND = torch.ones(1, grid[0] * grid[1], 16, dtype=torch.bfloat16)
    marked_BND = layer(tokens_BND, grid)
    assert marked_BND.dtype == torch.float32
    torch.testing.assert_close(marked_BND[0] - 1, posemb_sincos_2d(*grid, 16), atol=1e-5, rtol=0)


def test_refuses_a_dimension_that_quarters_do_not_fill() -> None:
    """A dimension that is no multiple of 4 is refused with its number."""
    with pytest.raises(ValueError, match="embed_dim 10 is not a multiple of 4"):
        SineCosinePositionEmbedding((2, 2), 10)
