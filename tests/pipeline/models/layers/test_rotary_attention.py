"""Rotary positions: only differences of places count; parity is in `test_model_parity`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from patchline.pipeline.models.layers.attention import AttentionValues
from patchline.pipeline.models.layers.rotary_attention import (
    RotarySelfAttention,
    grid_positions,
    rotation_frequencies,
)

D, H = 48, 3
GRID = (4, 6)


def _attention(*, learned: bool = False) -> RotarySelfAttention:
    torch.manual_seed(0)
    layer = RotarySelfAttention(D, H, learned=learned)
    for linear in (layer.query_key_value, layer.projection):
        nn.init.normal_(linear.weight, std=0.3)
        nn.init.normal_(linear.bias, std=0.3)
    return layer.eval()


def _seen(layer: RotarySelfAttention, *inputs: torch.Tensor) -> AttentionValues:
    seen: list[AttentionValues] = []
    layer.observer = seen.append
    layer(*inputs)
    layer.observer = None
    return seen[0]


@torch.no_grad()
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("shift", [(-3.0, 7.0), (2.5, 0.25)])
def test_a_score_depends_on_the_difference_of_places_alone(
    learned: bool, shift: tuple[float, float]
) -> None:
    """When every token moves by as much, no score and no answer changes."""
    layer, tokens_BND = _attention(learned=learned), torch.randn(2, 24, D)
    places_N2 = grid_positions(GRID)
    moved_N2 = places_N2 + torch.tensor(shift)
    here, there = _seen(layer, tokens_BND, places_N2), _seen(layer, tokens_BND, moved_N2)
    torch.testing.assert_close(there.scores_BHNN, here.scores_BHNN, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        layer(tokens_BND, moved_N2), layer(tokens_BND, places_N2), atol=1e-4, rtol=1e-4
    )
    assert not torch.allclose(there.query_BHNd, here.query_BHNd, atol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("learned", [False, True])
def test_every_image_may_have_places_of_its_own(learned: bool) -> None:
    """One set of places an image gives each image the answer that it gets alone."""
    layer, tokens_BND = _attention(learned=learned), torch.randn(3, 5, D)
    places_BN2 = torch.stack([grid_positions(GRID)[torch.randperm(24)[:5]] for _ in range(3)])
    alone = [
        layer(tokens_ND[None], places_N2)[0]
        for tokens_ND, places_N2 in zip(tokens_BND, places_BN2, strict=True)
    ]
    torch.testing.assert_close(
        layer(tokens_BND, places_BN2), torch.stack(alone), atol=1e-5, rtol=1e-5
    )


def test_mixed_frequencies_point_in_random_perpendicular_directions() -> None:
    """Lengths fall from 1 to near 1/10; each head draws an angle, its second half turned by 90°."""
    torch.manual_seed(0)
    frequencies_2HF = rotation_frequencies(64, 16, mixed=True)
    torch.manual_seed(0)
    assert torch.equal(rotation_frequencies(64, 16, mixed=True), frequencies_2HF)
    lengths_M = 10.0 ** (-torch.arange(4) / 4)
    torch.testing.assert_close(
        frequencies_2HF.norm(dim=0), lengths_M.repeat(2).expand(64, -1), atol=1e-5, rtol=1e-5
    )
    first, second = frequencies_2HF.tensor_split(2, dim=2)
    assert float((first * second).sum(dim=0).abs().max()) < 1e-5
    angles_H = torch.atan2(first[1, :, 0], first[0, :, 0]) % (2 * math.pi)
    quarters = torch.bincount((angles_H / (math.pi / 2)).long(), minlength=4)
    assert int(quarters.min()) >= 8


@torch.no_grad()
def test_angles_keep_float32_under_autocast() -> None:
    """Where matrices are multiplied in bfloat16, queries are still turned by exact angles."""
    layer = _attention(learned=True)
    nn.init.zeros_(layer.query_key_value.weight)  # queries are their biases, which bfloat16 holds
    nn.init.ones_(layer.query_key_value.bias)
    tokens_BND, places_N2 = torch.zeros(1, 14 * 14, D), grid_positions((14, 14))
    expected_BHNd = _seen(layer, tokens_BND, places_N2).query_BHNd
    with torch.autocast("cpu", torch.bfloat16):
        found_BHNd = _seen(layer, tokens_BND, places_N2).query_BHNd
    assert torch.equal(found_BHNd, expected_BHNd.bfloat16())
