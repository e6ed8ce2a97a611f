"""The pre-norm encoder block (arXiv 2010.11929, equations 2 and 3)."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.activations import ActivationName
from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.layer_scale import LayerScale
from patchline.pipeline.models.layers.mlp import MLP
from patchline.pipeline.models.layers.normalisation import EPSILON, NORMS, NormName
from patchline.pipeline.models.layers.stochastic_depth import StochasticDepth

LAYER_NORM_EPSILON = EPSILON


class EncoderBlock(nn.Module):
    """Attention and MLP as pre-norm residual branches: `tokens_BND -> tokens_BND`.

    z' = MSA(LN(z)) + z;  z'' = MLP(LN(z')) + z'

    Args:
        attention: the attention layer (MSA); its embedding dimension D is the block's.
        mlp_dim: hidden dimension of the MLP.
        dropout: dropout after each linear layer.
        stochastic_depth: probability of skipping a branch of a sample in training.
        layer_scale: initial gain of both branches; None for no LayerScale (arXiv 2103.17239).
        norm: name of the normalisation layer before each branch.
        norm_epsilon: added to the variance by both normalisation layers.
        activation: name of the activation of the MLP.
    """

    def __init__(
        self,
        attention: MultiHeadSelfAttention,
        mlp_dim: int,
        *,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        layer_scale: float | None = None,
        norm: NormName = "layer_norm",
        norm_epsilon: float = EPSILON,
        activation: ActivationName = "gelu",
    ) -> None:
        super().__init__()
        embed_dim = attention.embed_dim
        self.attention_norm = NORMS[norm](embed_dim, norm_epsilon)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.attention_scale = _scale(embed_dim, layer_scale)
        self.mlp_norm = NORMS[norm](embed_dim, norm_epsilon)
        self.mlp = MLP(embed_dim, mlp_dim, dropout, activation=activation)
        self.mlp_scale = _scale(embed_dim, layer_scale)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, tokens_BND: torch.Tensor, *attention_inputs: torch.Tensor) -> torch.Tensor:
        """Return the tokens after both residual branches.

        Further inputs of the attention, such as positions, follow the tokens.
        """
        attended_BND = self.attention(self.attention_norm(tokens_BND), *attention_inputs)
        attended_BND = self.attention_scale(self.attention_dropout(attended_BND))
        tokens_BND = tokens_BND + self.stochastic_depth(attended_BND)
        transformed_BND = self.mlp_scale(self.mlp(self.mlp_norm(tokens_BND)))
        output_BND: torch.Tensor = tokens_BND + self.stochastic_depth(transformed_BND)
        return output_BND


def _scale(embed_dim: int, initial_gain: float | None) -> nn.Module:
    return nn.Identity() if initial_gain is None else LayerScale(embed_dim, initial_gain)
