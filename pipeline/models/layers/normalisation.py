"""The normalisation layers of an encoder block, by name.

LayerNorm (arXiv 1607.06450) is the published ViT's. RMSNorm (arXiv 1910.07467) does not subtract
the mean and has no bias, which saves a pass over the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

EPSILON = 1e-6
"""Added to the variance, as in the published ViT."""

NormName = Literal["layer_norm", "rms_norm"]


def _layer_norm(embed_dim: int, epsilon: float = EPSILON) -> nn.Module:
    return nn.LayerNorm(embed_dim, eps=epsilon)


def _rms_norm(embed_dim: int, epsilon: float = EPSILON) -> nn.Module:
    return nn.RMSNorm(embed_dim, eps=epsilon)


NORMS: dict[NormName, Callable[..., nn.Module]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
"""Build the layer for an embedding dimension D and an epsilon: `tokens_BND -> tokens_BND`."""
