"""Multi-head self-attention against torch; its parity inside whole models is in tests/plugins."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.models.layers.attention import (
    LONGEST_STORED,
    MultiHeadSelfAttention,
    compute_fused_attention,
    explicit_attention,
)

B, N, D, H = 3, 7, 24, 4


def _tokens() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))


def _attention(dropout: float = 0.0) -> MultiHeadSelfAttention:
    torch.manual_seed(1)
    layer = MultiHeadSelfAttention(D, H, dropout)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases too, and scores far from uniform
    return layer


@torch.no_grad()
def test_equals_the_layer_of_torch() -> None:
    """With the same weights it is torch's own multi-head attention of the tokens on themselves."""
    layer, tokens_BND = _attention().eval(), _tokens()
    reference = nn.MultiheadAttention(D, H, batch_first=True).eval()
    reference.load_state_dict(
        {
            "in_proj_weight": layer.query_key_value.weight,
            "in_proj_bias": layer.query_key_value.bias,
            "out_proj.weight": layer.projection.weight,
            "out_proj.bias": layer.projection.bias,
        }
    )
    expected, _ = reference(tokens_BND, tokens_BND, tokens_BND, need_weights=False)
    torch.testing.assert_close(layer(tokens_BND), expected, atol=1e-5, rtol=1e-5)


def _forbidden(kind: str) -> torch.Tensor | None:
    if kind == "nothing":
        return None
    itself_NN = torch.eye(N, dtype=torch.bool)
    return itself_NN if kind == "itself" else ~torch.ones(N, N).tril().bool()


@pytest.mark.parametrize("kind", ["nothing", "itself", "what follows"])
def test_step_by_step_equals_the_fused_kernel(kind: str) -> None:
    """Both paths give one answer and one gradient to 1e-5, whatever a token may not look at."""
    torch.manual_seed(2)
    inputs = [torch.randn(B, H, N, D // H) for _ in range(3)]
    direction_BHNd = torch.randn(B, H, N, D // H)
    found = []
    for step_by_step in (True, False):
        leaves = [value.clone().requires_grad_() for value in inputs]
        mixed_BHNd = (
            explicit_attention(*leaves, attn_mask=_forbidden(kind)).mixed_BHNd
            if step_by_step
            else compute_fused_attention(*leaves, attn_mask=_forbidden(kind))
        )
        found.append(
            [mixed_BHNd, *torch.autograd.grad((mixed_BHNd * direction_BHNd).sum(), leaves)]
        )
    for explicit, fused in zip(*found, strict=True):
        torch.testing.assert_close(explicit, fused, atol=1e-5, rtol=0)
        assert float(fused.detach().std()) > 0.01


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("kind", ["nothing", "itself", "what follows"])
def test_in_bfloat16_equals_the_fused_kernel_of_torch(kind: str, autocast: bool) -> None:
    """Values and gradients are those of torch's kernel in float32, within bfloat16's rounding."""
    torch.manual_seed(2)
    inputs = [torch.randn(B, H, N, D // H).bfloat16() for _ in range(3)]
    direction_BHNd = torch.randn(B, H, N, D // H)
    attn_mask = _forbidden(kind)
    allowed_NN = None if attn_mask is None else ~attn_mask
    exact = [each.float().requires_grad_() for each in inputs]
    query, key, value = exact
    expected_BHNd = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed_NN)
    dtype = torch.float32 if autocast else torch.bfloat16
    leaves = [each.to(dtype).requires_grad_() for each in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed_BHNd = compute_fused_attention(*leaves, attn_mask=attn_mask)
    assert mixed_BHNd.dtype is torch.bfloat16
    for found, reference in zip(
        [mixed_BHNd, *torch.autograd.grad((mixed_BHNd * direction_BHNd).sum(), leaves)],
        [expected_BHNd, *torch.autograd.grad((expected_BHNd * direction_BHNd).sum(), exact)],
        strict=True,
    ):
        torch.testing.assert_close(found.float(), reference, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(
    ("tokens", "dtype", "stored"),
    [
        (LONGEST_STORED, torch.bfloat16, True),
        (LONGEST_STORED + 1, torch.bfloat16, False),
        (LONGEST_STORED, torch.float32, False),
    ],
)
def test_only_short_sequences_in_bfloat16_store_their_weights(
    tokens: int, dtype: torch.dtype, stored: bool
) -> None:
    """Nothing as large as the score matrix is kept for the backward pass of other sequences."""
    kept: list[int] = []

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept.append(value.numel())
        return value

    leaf = torch.randn(1, 1, tokens, 8, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        compute_fused_attention(leaf, leaf, leaf)
    assert (max(kept) >= tokens**2) is stored


@torch.no_grad()
@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_drops_attention_in_training_alone(autocast: bool) -> None:
    """Dropout changes what is mixed in bfloat16 as well, and nothing in evaluation."""
    layer, tokens_BND = _attention(dropout=0.5), _tokens()
    if not autocast:
        layer, tokens_BND = layer.bfloat16(), tokens_BND.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        layer.eval()
        torch.testing.assert_close(layer(tokens_BND), layer(tokens_BND))
        layer.train()
        assert (layer(tokens_BND) - layer(tokens_BND)).abs().max() > 1e-2
