"""Locality attention: no token looks at itself, and the temperature is learned."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from vit_pytorch.vit_for_small_dataset import LSA

from patchline.pipeline.layers.attention import AttentionValues
from patchline.pipeline.layers.locality_attention import LocalitySelfAttention

N, D, H = 7, 24, 4
HEAD = D // H


def _attention(log_sharpness: float = 0.4) -> LocalitySelfAttention:
    torch.manual_seed(0)
    layer = LocalitySelfAttention(D, H)
    for parameter in (*layer.query_key_value.parameters(), *layer.projection.parameters()):
        nn.init.normal_(parameter, std=0.3)
    nn.init.constant_(layer.log_sharpness, log_sharpness)
    return layer.eval()


def _tokens() -> torch.Tensor:
    return torch.randn(3, N, D, generator=torch.Generator().manual_seed(1))


def _seen(layer: LocalitySelfAttention) -> AttentionValues:
    seen: list[AttentionValues] = []
    layer.observer = seen.append
    layer(_tokens())
    layer.observer = None
    return seen[0]


def test_equals_vit_pytorch() -> None:
    """From the same weights it is vit-pytorch's LSA, in the answer and every gradient."""
    ours, theirs = _attention(), LSA(D, heads=H, dim_head=HEAD)
    theirs.norm = nn.Identity()  # ours stands in a block that normalises
    with torch.no_grad():
        theirs.to_qkv.weight.copy_(ours.query_key_value.weight)
        theirs.to_out[0].weight.copy_(ours.projection.weight)
        theirs.to_out[0].bias.copy_(ours.projection.bias)
        theirs.temperature.copy_(ours.log_sharpness - math.log(math.sqrt(HEAD)))
    answers = ours(_tokens()), theirs(_tokens())
    torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-5)
    for answer in answers:
        answer.square().sum().backward()
    names: Any = {
        "query_key_value.weight": theirs.to_qkv.weight,
        "projection.weight": theirs.to_out[0].weight,
        "projection.bias": theirs.to_out[0].bias,
        "log_sharpness": theirs.temperature,
    }
    assert names.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, names[name].grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_no_token_takes_from_itself() -> None:
    """The weight of every token for itself is zero, and what is left sums to 1."""
    weights_BHNN = _seen(_attention()).weights_BHNN
    assert (weights_BHNN.diagonal(dim1=2, dim2=3) == 0).all()
    assert int((weights_BHNN > 0).sum()) == 3 * H * N * (N - 1)
    torch.testing.assert_close(weights_BHNN.sum(-1), torch.ones(3, H, N))


@torch.no_grad()
def test_the_temperature_scales_the_scores() -> None:
    """It starts at sqrt(d) as in plain attention; a sharpness s multiplies all scores by exp(s)."""
    assert float(LocalitySelfAttention(D, H).log_sharpness) == 0.0
    plain, sharp = _seen(_attention(0.0)), _seen(_attention(1.0))
    others_NN = ~torch.eye(N, dtype=torch.bool)
    expected = plain.query_BHNd @ plain.key_BHNd.transpose(2, 3) / math.sqrt(HEAD)
    torch.testing.assert_close(plain.scores_BHNN[..., others_NN], expected[..., others_NN])
    torch.testing.assert_close(sharp.scores_BHNN[..., others_NN], math.e * expected[..., others_NN])


@torch.no_grad()
def test_two_tokens_swap_what_they_hold() -> None:
    """Of two tokens each takes the whole value of the other."""
    layer = _attention()
    tokens_BND = _tokens()[:, :2]
    value_BND = tokens_BND @ layer.query_key_value.weight[2 * D :].T
    torch.testing.assert_close(
        layer(tokens_BND), layer.projection(value_BND.flip(1)), atol=1e-5, rtol=1e-5
    )
