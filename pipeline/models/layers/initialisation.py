"""Initial weights of linear layers, for `module.apply`."""

from __future__ import annotations

import math

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.encoder_block import EncoderBlock


def xavier(module: nn.Module) -> None:
    """Set Xavier-uniform weights and zero biases, as in the published ViT.

    The fused projection of an attention layer is initialised as three separate matrices. Apply it
    to whole blocks: `module.apply` visits an attention layer after its linear layers.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        _zero(module.bias)
    elif isinstance(module, MultiHeadSelfAttention):
        xavier_fused_(module.query_key_value.weight)


def xavier_fused_(weight: torch.Tensor) -> None:
    """Fill stacked D x D matrices with the Xavier-uniform values of a single D x D matrix."""
    bound = math.sqrt(6 / (2 * weight.shape[1]))
    nn.init.uniform_(weight, -bound, bound)


def zero_residuals(block: nn.Module) -> None:
    """Zero the last layer of both branches of an encoder block, which is then the identity.

    So a deep network starts as a shallow one and its gradients are well scaled (arXiv 1901.09321).
    """
    if isinstance(block, EncoderBlock):
        for last in (block.attention.projection, block.mlp.contract):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)


def set_truncated_normal(module: nn.Module) -> None:
    """Set truncated normal weights (std 0.02) and zero biases, as in DeiT and CCT."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        _zero(module.bias)


def _zero(bias: torch.Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
