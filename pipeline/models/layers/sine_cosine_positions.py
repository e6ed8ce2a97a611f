"""Fixed two-dimensional sine-cosine positions (arXiv 2104.02057, section 3; 2205.01580).

Shapes: B batch, N tokens, P prefix tokens among them, D embedding.
"""

from __future__ import annotations

import torch
from torch import nn

_SLOWEST = 10_000.0


class SineCosinePositionEmbedding(nn.Module):
    """Add sines and cosines of a token's column and row: `tokens_BND -> tokens_BND`.

    Nothing is learned, and every grid is supported. Prefix tokens are left unchanged.

    Args:
        grid: rows and columns of the patches.
        embed_dim: D, the dimension of a token, a multiple of 4.
        prefix_tokens: P, number of prefix tokens.

    Raises:
        ValueError: if D is not a multiple of 4.
    """

    def __init__(self, grid: tuple[int, int], embed_dim: int, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.grid, self.embed_dim, self.prefix_tokens = grid, embed_dim, prefix_tokens
        positions_1ND = sine_cosine_positions(grid, embed_dim, prefix_tokens)
        self.positions_1ND: torch.Tensor
        self.register_buffer("positions_1ND", positions_1ND, persistent=False)

    def forward(self, tokens_BND: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the tokens of a grid with their position embeddings added."""
        positions_1ND = self.positions_1ND
        if grid != self.grid:
            positions_1ND = sine_cosine_positions(grid, self.embed_dim, self.prefix_tokens)
        return tokens_BND + positions_1ND.to(tokens_BND.device)


def sine_cosine_positions(
    grid: tuple[int, int], embed_dim: int, prefix_tokens: int = 0
) -> torch.Tensor:
    """Return the positions of a grid, row by row: (1, P + N, D).

    The four quarters of the channels are the sine and cosine of the column, and the sine and cosine
    of the row, at wavelengths from 2 pi to 20,000 pi.

    Raises:
        ValueError: if D is not a multiple of 4.
    """
    if embed_dim % 4:
        raise ValueError(f"embed_dim {embed_dim} is not a multiple of 4")
    rows, columns = grid
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    quarter = embed_dim // 4
    frequencies_Q = _SLOWEST ** (-torch.arange(quarter) / max(1, quarter - 1))
    x_NQ = x.reshape(-1, 1) * frequencies_Q
    y_NQ = y.reshape(-1, 1) * frequencies_Q
    positions_ND = torch.cat([x_NQ.sin(), x_NQ.cos(), y_NQ.sin(), y_NQ.cos()], dim=1)
    return torch.cat([positions_ND.new_zeros(prefix_tokens, embed_dim), positions_ND])[None]
