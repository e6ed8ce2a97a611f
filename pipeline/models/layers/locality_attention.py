"""Locality self-attention for small data sets (arXiv 2112.13492, section 3.2).

Shapes: B batch, N tokens, D embedding, H heads, d = D / H the size of a head.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention


class LocalitySelfAttention(MultiHeadSelfAttention):
    """Self-attention with learned temperature and masked diagonal: `tokens_BND -> tokens_BND`.

    The temperature of the softmax is learned, starting at sqrt(d), and no token attends to itself;
    both sharpen the attention. Needs at least two tokens.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, *, bias: bool = False
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias=bias)
        self.log_sharpness = nn.Parameter(torch.zeros(()))
        """The scores are multiplied by exp of this, on top of 1 / sqrt(d)."""

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the attended tokens, shaped like the input."""
        query_BHNd, key_BHNd, value_BHNd = self.queries_keys_values(tokens_BND)
        N = tokens_BND.shape[1]
        itself_NN = torch.eye(N, dtype=torch.bool, device=tokens_BND.device)
        sharpness = self.log_sharpness.exp().to(query_BHNd.dtype)
        return self.attend(query_BHNd * sharpness, key_BHNd, value_BHNd, itself_NN)
