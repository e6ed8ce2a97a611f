"""Position embeddings by name (arXiv 2010.11929, appendix D.4)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding

Positions = Literal["learned", "sine_cosine", "none"]


class NoPositionEmbedding(nn.Module):
    """Add nothing: the model sees an unordered set of patches."""

    def forward(self, tokens_BND: torch.Tensor, _grid: tuple[int, int]) -> torch.Tensor:
        """Return the tokens unchanged."""
        return tokens_BND


def position_embedding(
    positions: Positions,
    grid: tuple[int, int],
    embed_dim: int,
    prefix_tokens: int = 0,
    *,
    std: float = 0.02,
) -> nn.Module:
    """Return the named position embedding; rotary positions are part of the attention instead.

    Args:
        positions: its name.
        grid: rows and columns of patches.
        embed_dim: D, the dimension of a token.
        prefix_tokens: the number of tokens before the patches.
        std: the standard deviation of learned position embeddings at initialisation.

    Raises:
        ValueError: for sine_cosine, if D is not a multiple of 4.
    """
    if positions == "learned":
        return LearnedPositionEmbedding(grid, embed_dim, prefix_tokens, std=std)
    if positions == "sine_cosine":
        return SineCosinePositionEmbedding(grid, embed_dim, prefix_tokens)
    return NoPositionEmbedding()
