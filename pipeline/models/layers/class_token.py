"""The class token: a learned token prepended to the patches (arXiv 2010.11929, equation 1)."""

from __future__ import annotations

import torch
from torch import nn


class ClassToken(nn.Module):
    """Prepend one learned token: `tokens_BND -> tokens_B(1+N)D`."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.token_11D = nn.Parameter(torch.zeros(1, 1, embed_dim))

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens with the class token prepended."""
        return torch.cat([self.token_11D.expand(tokens_BND.shape[0], -1, -1), tokens_BND], dim=1)
