"""Self-attention with two-dimensional rotary positions (arXiv 2403.13298, section 3; 2104.09864).

Shapes: B batch, N tokens, D embedding, H heads, d = D / H the size of a head, F = d / 2 pairs.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention


class RotarySelfAttention(MultiHeadSelfAttention):
    """Rotate queries and keys by position, then attend: `tokens_BND, places -> tokens_BND`.

    The channels of a head form pairs; pair f is rotated by x * frequency_x + y * frequency_y. A
    score then depends only on the difference of two positions. A token at (0, 0) is not rotated; a
    class token uses that position.

    Args:
        embed_dim: D, the dimension of a token.
        num_heads: H, a divisor of D; d must be a multiple of 4.
        dropout: dropout probability of the attention weights in training.
        learned: learn frequencies that mix x and y, starting at random angles ("mixed", section
            3.2), instead of fixed ones, half of them for x and half for y ("axial").
        qk_norm: normalise queries and keys before they are rotated.

    Raises:
        ValueError: if `num_heads` does not divide `embed_dim`, or d is not a multiple of 4.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        learned: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, qk_norm=qk_norm)
        head_dim = embed_dim // num_heads
        if head_dim % 4:
            raise ValueError(f"the head's size {head_dim} is not a multiple of 4")
        frequencies_2HF = rotation_frequencies(num_heads, head_dim, mixed=learned)
        if learned:
            self.frequencies_2HF = nn.Parameter(frequencies_2HF)
        else:
            self.register_buffer("frequencies_2HF", frequencies_2HF, persistent=False)

    def forward(self, tokens_BND: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """Return the attended tokens, shaped like the input.

        `places` holds the positions (x, y): (N, 2), or (B, N, 2) for different ones per image;
        without it nothing is rotated.
        """
        query_BHNd, key_BHNd, value_BHNd = self.queries_keys_values(tokens_BND)
        if places is None:
            return self.attend(query_BHNd, key_BHNd, value_BHNd)
        angles_HNF = self._angles(places)
        return self.attend(rotate(query_BHNd, angles_HNF), rotate(key_BHNd, angles_HNF), value_BHNd)

    def _angles(self, places: torch.Tensor) -> torch.Tensor:
        # Elementwise products: autocast would round a matrix product.
        x_1N1, y_1N1 = places.float()[..., None, :, :, None].unbind(-2)
        x_frequencies_HF, y_frequencies_HF = self.frequencies_2HF.float()
        angles_HNF: torch.Tensor = (
            x_1N1 * x_frequencies_HF[:, None] + y_1N1 * y_frequencies_HF[:, None]
        )
        return angles_HNF


def rotation_frequencies(num_heads: int, head_dim: int, *, mixed: bool) -> torch.Tensor:
    """Return the frequencies in radians per step in x and in y: (2, H, F).

    Axial frequencies decrease from 1 to nearly 1/100, mixed ones to nearly 1/10 (section 3.2). Each
    head's mixed frequencies have two perpendicular directions drawn from torch's generator.
    """
    base = 10.0 if mixed else 100.0
    magnitudes_M = base ** (-torch.arange(0, head_dim, 4) / head_dim)
    angles_H1 = torch.rand(num_heads, 1) * (2 * math.pi) if mixed else torch.zeros(num_heads, 1)
    directions_HF = torch.cat(
        [
            angles_H1.expand(-1, len(magnitudes_M)),
            (angles_H1 + math.pi / 2).expand(-1, len(magnitudes_M)),
        ],
        dim=1,
    )
    magnitudes_F = magnitudes_M.repeat(2)
    return torch.stack([magnitudes_F * directions_HF.cos(), magnitudes_F * directions_HF.sin()])


def rotate(values_BHNd: torch.Tensor, angles_HNF: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of channels (2f, 2f + 1) of a head by angle f, in float32."""
    pairs_BHNF2 = values_BHNd.float().reshape(*values_BHNd.shape[:-1], -1, 2)
    first, second = pairs_BHNF2.unbind(-1)
    cosine, sine = angles_HNF.cos(), angles_HNF.sin()
    turned = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return turned.flatten(-2).to(values_BHNd.dtype)


def grid_positions(grid: tuple[int, int], device: torch.device | None = None) -> torch.Tensor:
    """Return the position (x, y) of each token of a grid, row by row: (N, 2)."""
    rows, columns = grid
    y, x = torch.meshgrid(
        torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij"
    )
    return torch.stack([x, y], dim=-1).reshape(-1, 2).float()
