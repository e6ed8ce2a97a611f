"""The pre-norm encoder block (arXiv 2010.11929, equations 2 and 3)."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.layers.attention import MultiHeadSelfAttention
from pipeline.layers.mlp import MLP
from pipeline.layers.stochastic_depth import StochasticDepth

LAYER_NORM_EPSILON = 1e-6


class EncoderBlock(nn.Module):
    """Attention and MLP, each normalised before and added to its input: `tokens_BND -> tokens_BND`.

    z' = MSA(LN(z)) + z;  z'' = MLP(LN(z')) + z'
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.attention = MultiHeadSelfAttention(embed_dim, num_heads, attention_dropout)
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.mlp = MLP(embed_dim, mlp_dim, dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens after both residual branches."""
        attended_BND = self.attention_dropout(self.attention(self.attention_norm(tokens_BND)))
        tokens_BND = tokens_BND + self.stochastic_depth(attended_BND)
        transformed_BND = self.mlp(self.mlp_norm(tokens_BND))
        output_BND: torch.Tensor = tokens_BND + self.stochastic_depth(transformed_BND)
        return output_BND
