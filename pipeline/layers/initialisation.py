"""Initial weights of linear layers, for `module.apply`."""

from __future__ import annotations

import math

import torch
from torch import nn

from pipeline.layers.attention import MultiHeadSelfAttention


def xavier(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases, as the published ViT starts.

    The fused projection of an attention layer counts as the three matrices that it stands for.
    Apply to whole blocks: an attention layer comes after its linear layers.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        _zero(module.bias)
    elif isinstance(module, MultiHeadSelfAttention):
        xavier_fused_(module.query_key_value.weight)


def xavier_fused_(weight: torch.Tensor) -> None:
    """Fill several D x D matrices, laid on each other as one, with each one's Xavier-uniform."""
    bound = math.sqrt(6 / (2 * weight.shape[1]))
    nn.init.uniform_(weight, -bound, bound)


def truncated_normal(module: nn.Module) -> None:
    """Normal weights of standard deviation 0.02 and zero biases, as in DeiT and CCT."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        _zero(module.bias)


def _zero(bias: torch.Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
