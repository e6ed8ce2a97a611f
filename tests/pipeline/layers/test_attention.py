"""Multi-head self-attention against its formula and against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pipeline.layers.attention import MultiHeadSelfAttention

B, N, D, H = 3, 7, 24, 4


def _tokens() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))


def _attention(dropout: float = 0.0) -> MultiHeadSelfAttention:
    torch.manual_seed(1)
    layer = MultiHeadSelfAttention(D, H, dropout)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases too, and scores far from uniform
    return layer


def _head(layer: MultiHeadSelfAttention, tokens_ND: torch.Tensor, head: int) -> torch.Tensor:
    """Return softmax(Q K^T / sqrt(d)) V of one head of one sample, one query after the other."""
    d = D // H
    weight_3HdD = layer.query_key_value.weight.reshape(3, H, d, D)
    bias_3Hd = layer.query_key_value.bias.reshape(3, H, d)
    query_Nd, key_Nd, value_Nd = (
        tokens_ND @ weight_3HdD[which, head].T + bias_3Hd[which, head] for which in range(3)
    )
    mixed = []
    for query_d in query_Nd:
        scores_N = torch.stack([query_d @ key_d for key_d in key_Nd]) / math.sqrt(d)
        exponentials_N = torch.exp(scores_N - scores_N.max())
        mixed.append((exponentials_N / exponentials_N.sum()) @ value_Nd)
    return torch.stack(mixed)


@torch.no_grad()
def test_equals_the_formula_step_by_step() -> None:
    """Every head is softmax(Q K^T / sqrt(d)) V, and the heads are concatenated and projected."""
    layer, tokens_BND = _attention(), _tokens()
    expected = []
    for tokens_ND in tokens_BND:
        heads_ND = torch.cat([_head(layer, tokens_ND, head) for head in range(H)], dim=1)
        expected.append(heads_ND @ layer.projection.weight.T + layer.projection.bias)
    torch.testing.assert_close(layer(tokens_BND), torch.stack(expected), atol=1e-5, rtol=1e-5)


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


@torch.no_grad()
def test_knows_no_order() -> None:
    """Tokens in another order give the same answers in that other order."""
    layer, tokens_BND = _attention(), _tokens()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        layer(tokens_BND[:, order]), layer(tokens_BND)[:, order], atol=1e-5, rtol=1e-5
    )


@torch.no_grad()
def test_every_token_reads_from_every_other() -> None:
    """A change of one token changes the answer of all tokens of its sample, and of no other."""
    layer, tokens_BND = _attention(), _tokens()
    changed_BND = tokens_BND.clone()
    changed_BND[1, 4] += 1.0
    difference_BN = (layer(changed_BND) - layer(tokens_BND)).abs().amax(dim=2)
    assert (difference_BN[1] > 1e-4).all()
    assert (difference_BN[[0, 2]] < 1e-6).all()


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
