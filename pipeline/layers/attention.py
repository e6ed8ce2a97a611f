"""Multi-head self-attention (arXiv 2010.11929, appendix A; arXiv 1706.03762, section 3.2).

Shapes: B batch, N tokens, D embedding, H heads, d = D / H the size of a head.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class MultiHeadSelfAttention(nn.Module):
    """Let every token read from every other: `tokens_BND -> tokens_BND`.

    Each head compares queries with keys, divides by sqrt(d), and mixes the values by the softmax
    of the result; the heads are concatenated and projected once more.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the mixed tokens, shaped like the input."""
        B, N, D = tokens_BND.shape
        qkv_BN3Hd = self.query_key_value(tokens_BND).reshape(B, N, 3, self.num_heads, -1)
        query_BHNd, key_BHNd, value_BHNd = qkv_BN3Hd.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHNd = functional.scaled_dot_product_attention(
            query_BHNd, key_BHNd, value_BHNd, dropout_p=self.dropout if self.training else 0.0
        )
        mixed_BND = mixed_BHNd.transpose(1, 2).reshape(B, N, D)
        projected_BND: torch.Tensor = self.projection(mixed_BND)
        return projected_BND
