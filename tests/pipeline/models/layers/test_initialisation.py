"""Initial weights: their distribution, and that the fused projection counts as three."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.encoder_block import EncoderBlock
from patchline.pipeline.models.layers.initialisation import (
    set_truncated_normal,
    xavier,
    zero_residuals,
)
from patchline.pipeline.models.layers.locality_attention import LocalitySelfAttention
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention

D, H, M = 96, 3, 192


def _assert_xavier(weight_OI: torch.Tensor) -> None:
    """Check a matrix for the uniform distribution up to sqrt(6 / (inputs + outputs))."""
    bound = math.sqrt(6 / sum(weight_OI.shape))
    assert float(weight_OI.abs().max()) <= bound * (1 + 1e-6)
    assert float(weight_OI.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)


def _biased(attention: MultiHeadSelfAttention) -> EncoderBlock:
    torch.manual_seed(0)
    block = EncoderBlock(attention, M)
    for name, parameter in block.named_parameters():
        if name.endswith("bias"):
            nn.init.ones_(parameter)
    return block


@torch.no_grad()
@pytest.mark.parametrize("attention", [MultiHeadSelfAttention, RotarySelfAttention])
def test_xavier_counts_the_fused_projection_as_three(
    attention: type[MultiHeadSelfAttention],
) -> None:
    """Queries, keys and values start as three D x D matrices, the other layers as one each."""
    block = _biased(attention(D, H))
    block.apply(xavier)
    for weight_DD in block.attention.query_key_value.weight.chunk(3):
        _assert_xavier(weight_DD)
    for linear in (block.attention.projection, block.mlp.expand, block.mlp.contract):
        _assert_xavier(linear.weight)


@torch.no_grad()
def test_zero_residuals_make_a_block_the_identity() -> None:
    """Only the last layer of each branch is zero, and the block returns its input."""
    block = _biased(RotarySelfAttention(D, H))
    block.apply(xavier)
    before = {name: parameter.clone() for name, parameter in block.named_parameters()}
    block.apply(zero_residuals)
    tokens_BND = torch.randn(2, 5, D)
    assert torch.equal(block(tokens_BND), tokens_BND)
    changed = {name for name, p in block.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"attention.projection.weight", "mlp.contract.weight"}


@torch.no_grad()
def test_truncated_normal_has_its_width() -> None:
    """Every matrix starts normal with standard deviation 0.02."""
    block = _biased(LocalitySelfAttention(D, H))
    block.apply(set_truncated_normal)
    for name, parameter in block.named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.std()) == pytest.approx(0.02, rel=0.03), name
            assert abs(float(parameter.mean())) < 0.001, name


@pytest.mark.parametrize("initialise", [xavier, set_truncated_normal])
@pytest.mark.parametrize("bias", [True, False])
def test_biases_start_at_zero_and_norms_stay(initialise: nn.Module, bias: bool) -> None:
    """All biases of linear layers become zero, missing ones are no trouble, gains stay 1."""
    block = _biased(MultiHeadSelfAttention(D, H, bias=bias))
    block.apply(initialise)
    for name, parameter in block.named_parameters():
        if parameter.ndim == 1:
            expected = 1.0 if "norm" in name else 0.0
            assert (parameter == expected).all(), name
