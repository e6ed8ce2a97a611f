"""Record the intermediate values of a ViT: tokens, scores and attention by layer and head.

Works for every model whose attention is `patchline.pipeline.models.layers.attention` or derived
from it.
Outside of `record_values`, models use their fused kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import AttentionValues, MultiHeadSelfAttention


@dataclass
class BlockValues:
    """The values of one encoder block for the last batch."""

    tokens_in_BND: torch.Tensor
    attention: AttentionValues
    tokens_out_BND: torch.Tensor


@dataclass
class IntermediateValues:
    """The values of a model for the last batch, filled in when the model is called."""

    blocks: list[BlockValues] = field(default_factory=list)
    """The values of each block, in the order of the layers; `tokens_in_BND` of the first one are
    the embedded patches."""


@contextmanager
def record_values(model: nn.Module) -> Iterator[IntermediateValues]:
    """Record the values of every block within the context.

    Each call of the model replaces the values of the previous call. The model's outputs equal those
    outside of the context up to rounding.

    Raises:
        ValueError: if the model has no attention from `patchline.pipeline.models.layers`, or is
            already recorded.
    """
    attentions = {
        module: attention
        for module in model.modules()
        if (attention := _attention_of(module)) is not None
    }
    if not attentions:
        raise ValueError(f"{type(model).__name__} has no self-attention to record")
    if any(attention.observer for attention in attentions.values()):
        raise ValueError(f"{type(model).__name__} is already being recorded")
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
