"""The named ways to tell a ViT where a patch was."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.layers.positions import position_embedding
from patchline.pipeline.layers.sine_cosine_positions import SineCosinePositionEmbedding


def test_every_name_has_its_layer() -> None:
    """Learned and sine-cosine positions cover the grid and what stands in front of it."""
    learned = position_embedding("learned", (2, 3), 8, prefix_tokens=1)
    fixed = position_embedding("sine_cosine", (2, 3), 8, prefix_tokens=1)
    assert isinstance(learned, LearnedPositionEmbedding)
    assert isinstance(fixed, SineCosinePositionEmbedding)
    for layer in (learned, fixed):
        assert layer.positions_1ND.shape == (1, 7, 8)
        assert layer.prefix_tokens == 1


def test_no_positions_leave_the_tokens_as_they_are() -> None:
    """Without positions tokens of any grid pass through, and nothing is learned."""
    layer: nn.Module = position_embedding("none", (2, 3), 8)
    for grid in ((2, 3), (4, 4)):
        tokens_BND = torch.randn(2, grid[0] * grid[1], 8)
        assert torch.equal(layer(tokens_BND, grid), tokens_BND)
    assert not list(layer.parameters())
