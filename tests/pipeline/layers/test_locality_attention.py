"""Locality attention: no token looks at itself, and the temperature is learned."""

from __future__ import annotations

import math

import torch
from torch import nn

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
