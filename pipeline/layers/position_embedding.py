"""Learned position embeddings, one vector for each place (arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

import torch
from torch import nn


class LearnedPositionEmbedding(nn.Module):
    """Add a learned vector to every token: `tokens_BND -> tokens_BND`."""

    def __init__(self, num_tokens: int, embed_dim: int) -> None:
        super().__init__()
        self.positions_1ND = nn.Parameter(torch.empty(1, num_tokens, embed_dim))
        nn.init.normal_(self.positions_1ND, std=0.02)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens, each marked with its place."""
        return tokens_BND + self.positions_1ND
