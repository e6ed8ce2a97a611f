"""Learned position embeddings, one vector per position (arXiv 2010.11929, section 3.1).

Shapes: B batch, N tokens, P prefix tokens among them (class token, registers), D embedding.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.grid_resizing import resize_positions


class LearnedPositionEmbedding(nn.Module):
    """Add a learned vector to every token: `tokens_BND -> tokens_BND`.

    For another grid than the learned one, the vectors are interpolated in two dimensions (section
    3.2).

    Args:
        grid: rows and columns of the patches.
        embed_dim: D, the dimension of a token.
        prefix_tokens: P, number of prefix tokens; each has its own vector.
        std: standard deviation of the initial vectors.
    """

    def __init__(
        self, grid: tuple[int, int], embed_dim: int, prefix_tokens: int = 0, *, std: float = 0.02
    ) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = grid, prefix_tokens
        rows, columns = grid
        self.positions_1ND = nn.Parameter(torch.empty(1, prefix_tokens + rows * columns, embed_dim))
        nn.init.normal_(self.positions_1ND, std=std)

    def forward(self, tokens_BND: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the tokens of a grid with their position embeddings added."""
        return tokens_BND + self.on_grid(grid)

    def on_grid(self, grid: tuple[int, int]) -> torch.Tensor:
        """Return the vectors for a grid: (1, P + rows * columns, D)."""
        return resize_positions(self.positions_1ND, self.prefix_tokens, self.grid, grid)
