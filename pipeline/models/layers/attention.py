"""Multi-head self-attention (arXiv 2010.11929, appendix A; arXiv 1706.03762, section 3.2).

Shapes: B batch, N tokens, D embedding, H heads, d = D / H the size of a head, S = B H.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.models.layers.normalisation import EPSILON

LONGEST_STORED = 512
"""The most tokens whose attention weights are stored; with heads of 64 numbers they then need
twice the memory of the hidden values of the MLP."""


class AttentionValues(NamedTuple):
    """The intermediate values of one attention layer, by head."""

    query_BHNd: torch.Tensor
    key_BHNd: torch.Tensor
    value_BHNd: torch.Tensor
    scores_BHNN: torch.Tensor
    """Row i: the scaled products of token i's query with every key; minus infinity where masked."""
    weights_BHNN: torch.Tensor
    """The softmax of each row of the scores: the weight of every token for token i."""
    mixed_BHNd: torch.Tensor


def explicit_attention(
    query_BHNd: torch.Tensor,
    key_BHNd: torch.Tensor,
    value_BHNd: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> AttentionValues:
    """Compute attention step by step, as in the paper: softmax(q k' / sqrt(d)) v.

    Same result as `compute_fused_attention`, which is faster but returns no intermediate values.

    Args:
        query_BHNd: the queries.
        key_BHNd: the keys.
        value_BHNd: the values.
        attn_mask: boolean (N, N), True where a token must not attend, as in
            `torch.nn.MultiheadAttention`.
        dropout: dropout probability of the attention weights.
    """
    head_dim = query_BHNd.shape[-1]
    scores_BHNN = query_BHNd @ key_BHNd.transpose(-2, -1) / head_dim**0.5
    if attn_mask is not None:
        scores_BHNN = scores_BHNN.masked_fill(attn_mask, float("-inf"))
    weights_BHNN = torch.softmax(scores_BHNN, dim=-1)
    mixed_BHNd = functional.dropout(weights_BHNN, dropout) @ value_BHNd
    return AttentionValues(query_BHNd, key_BHNd, value_BHNd, scores_BHNN, weights_BHNN, mixed_BHNd)


def compute_fused_attention(
    query_BHNd: torch.Tensor,
    key_BHNd: torch.Tensor,
    value_BHNd: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Compute attention with torch's fused kernel, which never stores the whole score matrix.

    In bfloat16 on a CPU, where the backward pass of that kernel is slow, up to 512 tokens are
    computed by two batched matrix products instead, which store the weights
    (docs/reference/performance.md, "A training step").

    `attn_mask` is True where a token must not attend; torch's own function has the opposite sense.
    """
    if query_BHNd.shape[2] <= LONGEST_STORED and _in_bfloat16_on_a_cpu(query_BHNd):
        return _compute_stored_attention(query_BHNd, key_BHNd, value_BHNd, attn_mask, dropout)
    allowed_NN = None if attn_mask is None else ~attn_mask
    return functional.scaled_dot_product_attention(
        query_BHNd, key_BHNd, value_BHNd, attn_mask=allowed_NN, dropout_p=dropout
    )


def _in_bfloat16_on_a_cpu(values: torch.Tensor) -> bool:
    """Whether a matrix product of the values is computed in bfloat16 on a CPU."""
    if values.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") is torch.bfloat16
    return values.dtype is torch.bfloat16


def _compute_stored_attention(
    query_BHNd: torch.Tensor,
    key_BHNd: torch.Tensor,
    value_BHNd: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Compute attention by matrix products over one axis of batch and heads, storing the weights.

    The query is scaled, not the scores: N / d times fewer numbers.
    """
    scaled_BHNd = query_BHNd * query_BHNd.shape[-1] ** -0.5
    scores_SNN = torch.bmm(scaled_BHNd.flatten(0, 1), key_BHNd.flatten(0, 1).transpose(1, 2))
    if attn_mask is not None:
        scores_SNN = scores_SNN.masked_fill(attn_mask, float("-inf"))
    weights_SNN = functional.dropout(torch.softmax(scores_SNN, dim=-1), dropout)
    return torch.bmm(weights_SNN, value_BHNd.flatten(0, 1)).view(query_BHNd.shape)


class MultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention: `tokens_BND -> tokens_BND`.

    Each head multiplies queries by keys, divides by sqrt(d), and averages the values weighted by
    the softmax of the result; the heads are concatenated and projected.

    Args:
        embed_dim: D, the dimension of a token.
        num_heads: H, a divisor of D.
        dropout: dropout probability of the attention weights in training.
        bias: whether queries, keys and values have biases; the output projection always has.
        qk_norm: normalise every query and key over its d numbers, with a learned gain, so that the
            scores cannot grow without bound (arXiv 2302.05442, section 2.2; with RMSNorm).

    Raises:
        ValueError: if `num_heads` does not divide `embed_dim`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        bias: bool = True,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        head_dim = embed_dim // num_heads
        self.query_norm = nn.RMSNorm(head_dim, eps=EPSILON) if qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(head_dim, eps=EPSILON) if qk_norm else nn.Identity()
        self.projection = nn.Linear(embed_dim, embed_dim)
        self.observer: Callable[[AttentionValues], None] | None = None
        """Called with the values; set by `intermediate_values.record_values`."""

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the attended tokens, shaped like the input."""
        return self.attend(*self.queries_keys_values(tokens_BND))

    def queries_keys_values(
        self, tokens_BND: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the projections of the tokens, each (B, H, N, d), after the QK norm if any."""
        B, N, _ = tokens_BND.shape
        qkv_BN3Hd = self.query_key_value(tokens_BND).reshape(B, N, 3, self.num_heads, -1)
        query_BHNd, key_BHNd, value_BHNd = qkv_BN3Hd.permute(2, 0, 3, 1, 4).unbind(0)
        return self.query_norm(query_BHNd), self.key_norm(key_BHNd), value_BHNd

    def attend(
        self,
        query_BHNd: torch.Tensor,
        key_BHNd: torch.Tensor,
        value_BHNd: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Apply attention, concatenate the heads and project: (B, N, D).

        `attn_mask` is boolean (N, N), True where a token must not attend.
        """
        dropout = self.dropout if self.training else 0.0
        inputs = (query_BHNd, key_BHNd, value_BHNd)
        if self.observer is None:
            mixed_BHNd = compute_fused_attention(*inputs, attn_mask=attn_mask, dropout=dropout)
        else:
            values = explicit_attention(*inputs, attn_mask=attn_mask, dropout=dropout)
            self.observer(values)
            mixed_BHNd = values.mixed_BHNd
        projected_BND: torch.Tensor = self.projection(mixed_BHNd.transpose(1, 2).flatten(2))
        return projected_BND
