"""The encoder block of the Compact Convolutional Transformer (arXiv 2104.05704, section 3).

It is the one of the authors' code, which normalises the residual stream itself between attention
and MLP; the paper's figure shows the usual pre-norm block.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.mlp import MLP
from patchline.pipeline.models.layers.stochastic_depth import StochasticDepth


class CompactBlock(nn.Module):
    """Attention and MLP, with the norm before the MLP on the stream: `tokens_BND -> tokens_BND`.

    z' = LN(MSA(LN(z)) + z);  z'' = MLP(z') + z'

    Args:
        attention: the attention layer (MSA); its embedding dimension D is the block's.
        mlp_dim: hidden dimension of the MLP.
        dropout: dropout after the attention and after each linear layer.
        stochastic_depth: probability of skipping a branch of a sample in training.
    """

    def __init__(
        self,
        attention: MultiHeadSelfAttention,
        mlp_dim: int,
        *,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        embed_dim = attention.embed_dim
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.stream_norm = nn.LayerNorm(embed_dim)
        self.mlp = MLP(embed_dim, mlp_dim, dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens after both residual branches."""
        attended_BND = self.attention_dropout(self.attention(self.attention_norm(tokens_BND)))
        stream_BND = self.stream_norm(tokens_BND + self.stochastic_depth(attended_BND))
        output_BND: torch.Tensor = stream_BND + self.stochastic_depth(self.mlp(stream_BND))
        return output_BND
