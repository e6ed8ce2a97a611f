"""The position-wise MLP of an encoder block (arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.activations import ACTIVATIONS, ActivationName


class MLP(nn.Module):
    """Two linear layers with an activation in between, dropout after each.

    `tokens_BND -> tokens_BND`
    """

    def __init__(
        self,
        embed_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        *,
        activation: ActivationName = "gelu",
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(embed_dim, mlp_dim)
        self.activation = ACTIVATIONS[activation]()
        self.contract = nn.Linear(mlp_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens, each transformed independently."""
        hidden_BNM = self.dropout(self.activation(self.expand(tokens_BND)))
        output_BND: torch.Tensor = self.dropout(self.contract(hidden_BNM))
        return output_BND
