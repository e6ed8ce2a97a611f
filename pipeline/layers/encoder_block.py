"""The pre-norm encoder block (arXiv 2010.11929, equations 2 and 3)."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.layers.attention import MultiHeadSelfAttention
from pipeline.layers.layer_scale import LayerScale
from pipeline.layers.mlp import MLP
from pipeline.layers.stochastic_depth import StochasticDepth

LAYER_NORM_EPSILON = 1e-6


class EncoderBlock(nn.Module):
    """Attention and MLP, each normalised before and added to its input: `tokens_BND -> tokens_BND`.

    z' = MSA(LN(z)) + z;  z'' = MLP(LN(z')) + z'

    Args:
        attention: MSA, for the block's embedding dimension D.
        mlp_dim: hidden dimension of the MLP.
        dropout: dropout after each linear layer.
        stochastic_depth: probability of leaving out a branch of an image in training.
        layer_scale: initial gain of both branches; None for no gain (arXiv 2103.17239).
    """

    def __init__(
        self,
        attention: MultiHeadSelfAttention,
        mlp_dim: int,
        *,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        embed_dim = attention.embed_dim
        self.attention_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.attention_scale = _scale(embed_dim, layer_scale)
        self.mlp_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.mlp = MLP(embed_dim, mlp_dim, dropout)
        self.mlp_scale = _scale(embed_dim, layer_scale)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, tokens_BND: torch.Tensor, *attention_inputs: torch.Tensor) -> torch.Tensor:
        """Return the tokens after both residual branches.

        What else the attention needs, such as places, follows the tokens.
        """
        attended_BND = self.attention(self.attention_norm(tokens_BND), *attention_inputs)
        attended_BND = self.attention_scale(self.attention_dropout(attended_BND))
        tokens_BND = tokens_BND + self.stochastic_depth(attended_BND)
        transformed_BND = self.mlp_scale(self.mlp(self.mlp_norm(tokens_BND)))
        output_BND: torch.Tensor = tokens_BND + self.stochastic_depth(transformed_BND)
        return output_BND


def _scale(embed_dim: int, initial_gain: float | None) -> nn.Module:
    return nn.Identity() if initial_gain is None else LayerScale(embed_dim, initial_gain)
