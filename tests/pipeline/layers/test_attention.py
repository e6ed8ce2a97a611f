"""Multi-head self-attention against torch; its parity inside whole models is in tests/plugins."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.layers.attention import (
    LONGEST_STORED,
    AttentionValues,
    MultiHeadSelfAttention,
    explicit_attention,
    fused_attention,
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
            else fused_attention(*leaves, attn_mask=_forbidden(kind))
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
        mixed_BHNd = fused_attention(*leaves, attn_mask=attn_mask)
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
        fused_attention(leaf, leaf, leaf)
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


@torch.no_grad()
def test_a_forbidden_token_has_no_weight() -> None:
    """Where a token may not look, its score is minus infinity and its weight zero."""
    torch.manual_seed(2)
    values = explicit_attention(*torch.randn(3, B, H, N, D // H), attn_mask=_forbidden("itself"))
    itself_NN = torch.eye(N, dtype=torch.bool)
    assert (values.scores_BHNN[..., itself_NN] == float("-inf")).all()
    assert (values.weights_BHNN[..., itself_NN] == 0).all()
    assert (values.weights_BHNN[..., ~itself_NN] > 0).all()
    torch.testing.assert_close(values.weights_BHNN.sum(-1), torch.ones(B, H, N))


@torch.no_grad()
def test_an_observer_sees_everything_and_changes_nothing() -> None:
    """Whoever observes is shown scores, weights and mixtures that lead to the very answer."""
    layer, tokens_BND = _attention().eval(), _tokens()
    expected = layer(tokens_BND)
    seen: list[AttentionValues] = []
    layer.observer = seen.append
    torch.testing.assert_close(layer(tokens_BND), expected, atol=1e-5, rtol=0)
    (values,) = seen
    scores_BHNN = torch.einsum("bhid,bhjd->bhij", values.query_BHNd, values.key_BHNd)
    torch.testing.assert_close(values.scores_BHNN, scores_BHNN / math.sqrt(D // H))
    torch.testing.assert_close(values.weights_BHNN, values.scores_BHNN.softmax(-1))
    torch.testing.assert_close(values.mixed_BHNd, values.weights_BHNN @ values.value_BHNd)
    mixed_BND = values.mixed_BHNd.transpose(1, 2).reshape(B, N, D)
    torch.testing.assert_close(layer.projection(mixed_BND), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_observed_path_drops_attention_in_training_alone() -> None:
    """Under an observer dropout acts as it does in the fused kernel, after the weights."""
    layer, tokens_BND = _attention(dropout=0.5), _tokens()
    seen: list[AttentionValues] = []
    layer.observer = seen.append
    layer.eval()
    torch.testing.assert_close(layer(tokens_BND), layer(tokens_BND))
    layer.train()
    assert (layer(tokens_BND) - layer(tokens_BND)).abs().max() > 1e-3
    for values in seen:
        torch.testing.assert_close(values.weights_BHNN.sum(-1), torch.ones(B, H, N))


def test_only_queries_keys_and_values_go_without_biases() -> None:
    """With bias False the three projections have none; the output keeps its own."""
    names = dict(MultiHeadSelfAttention(D, H, bias=False).named_parameters()).keys()
    assert names == {"query_key_value.weight", "projection.weight", "projection.bias"}


@torch.no_grad()
def test_drops_attention_in_training_alone() -> None:
    """Dropout changes what is mixed while training, and nothing in evaluation."""
    layer, plain, tokens_BND = _attention(dropout=0.5), _attention(), _tokens()
    torch.testing.assert_close(layer.eval()(tokens_BND), plain(tokens_BND))
    layer.train()
    assert (layer(tokens_BND) - layer(tokens_BND)).abs().max() > 1e-3


def test_refuses_heads_that_do_not_divide() -> None:
    """An embedding that the heads cannot share evenly is refused with both numbers."""
    with pytest.raises(ValueError, match=r"24 .* 5"):
        MultiHeadSelfAttention(24, 5)
