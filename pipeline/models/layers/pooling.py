"""Pool the tokens into one feature vector: `tokens_BND -> features_BD`.

Four ways: the class token, the average of the patches, and two learned weighted averages.

Shapes: B batch, N tokens, D embedding, H heads, d = D / H the size of a head.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.models.layers.activations import ActivationName
from patchline.pipeline.models.layers.initialisation import xavier, xavier_fused_
from patchline.pipeline.models.layers.mlp import MLP
from patchline.pipeline.models.layers.normalisation import EPSILON


class ClassTokenPooling(nn.Module):
    """Take the first token (arXiv 2010.11929, equation 4)."""

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the class token."""
        return tokens_BND[:, 0]


class AveragePooling(nn.Module):
    """Average the tokens after the first `prefix_tokens` (arXiv 2205.01580, section 3)."""

    def __init__(self, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the mean over the patches."""
        return tokens_BND[:, self.prefix_tokens :].mean(dim=1)


class SequencePooling(nn.Module):
    """Average weighted by a linear layer and a softmax (arXiv 2104.05704, section 3.1)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.importance = nn.Linear(embed_dim, 1)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean over all tokens."""
        weights_BN1 = torch.softmax(self.importance(tokens_BND), dim=1)
        return (weights_BN1.transpose(1, 2) @ tokens_BND).squeeze(1)


class AttentionPooling(nn.Module):
    """Attend to all tokens with one learned query, then an MLP (arXiv 2106.04560, section 3.3).

    Raises:
        ValueError: if `num_heads` does not divide `embed_dim`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        activation: ActivationName = "gelu",
        norm_epsilon: float = EPSILON,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.probe_11D = nn.Parameter(torch.empty(1, 1, embed_dim))
        nn.init.trunc_normal_(self.probe_11D, std=embed_dim**-0.5)
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key_value = nn.Linear(embed_dim, 2 * embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_epsilon)
        self.mlp = MLP(embed_dim, mlp_dim, activation=activation)
        self.apply(xavier)
        xavier_fused_(self.key_value.weight)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the pooled features."""
        B = tokens_BND.shape[0]
        query_BHNd = self._heads(self.query(self.probe_11D).expand(B, -1, -1))
        key_BND, value_BND = self.key_value(tokens_BND).chunk(2, dim=-1)
        found_BHNd = functional.scaled_dot_product_attention(
            query_BHNd, self._heads(key_BND), self._heads(value_BND)
        )
        found_B1D = self.projection(found_BHNd.transpose(1, 2).flatten(2))
        features_B1D: torch.Tensor = found_B1D + self.mlp(self.norm(found_B1D))
        return features_B1D[:, 0]

    def _heads(self, values_BND: torch.Tensor) -> torch.Tensor:
        B, N, _ = values_BND.shape
        return values_BND.reshape(B, N, self.num_heads, -1).transpose(1, 2)
