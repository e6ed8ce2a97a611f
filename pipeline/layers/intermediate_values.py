"""Ask a ViT for what it computes on the way: tokens, scores, attention by layer and head.

Works on every model whose attention is `pipeline.layers.attention` or derived from it. A model that
nobody asks runs its fused kernels as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pipeline.layers.attention import AttentionValues, MultiHeadSelfAttention


@dataclass
class BlockValues:
    """What one encoder block computed for the last batch."""

    tokens_in_BND: torch.Tensor
    attention: AttentionValues
    tokens_out_BND: torch.Tensor


@dataclass
class IntermediateValues:
    """What a model computed for the last batch, filled when it is called."""

    blocks: list[BlockValues] = field(default_factory=list)
    """In the order of the layers; the first one's tokens_in are the embedded patches."""


@contextmanager
def recorded(model: nn.Module) -> Iterator[IntermediateValues]:
    """Record every block's values while the context lasts.

    The values of a call replace those of the call before. The model's answers agree with those
    outside of the context to rounding.

    Raises:
        ValueError: if the model has no attention of ours, or is being recorded already.
    """
    attentions = {
        module: attention
        for module in model.modules()
        if (attention := _attention_of(module)) is not None
    }
    if not attentions:
        raise ValueError(f"{type(model).__name__} has no self-attention that could be recorded")
    if any(attention.observer for attention in attentions.values()):
        raise ValueError(f"{type(model).__name__} is being recorded already")
    values = IntermediateValues()
    seen: list[AttentionValues] = []
    handles = [model.register_forward_pre_hook(lambda *_: values.blocks.clear())]

    def keep(_block: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        values.blocks.append(BlockValues(inputs[0], seen.pop(), output))

    for block, attention in attentions.items():
        handles.append(block.register_forward_hook(keep))
        attention.observer = seen.append
    try:
        yield values
    finally:
        for handle in handles:
            handle.remove()
        for attention in attentions.values():
            attention.observer = None


def _attention_of(block: nn.Module) -> MultiHeadSelfAttention | None:
    return next((m for m in block.children() if isinstance(m, MultiHeadSelfAttention)), None)
