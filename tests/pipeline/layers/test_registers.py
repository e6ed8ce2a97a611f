"""Registers are learned tokens between the tokens in front and the patches."""

from __future__ import annotations

import pytest
import torch

from patchline.pipeline.layers.registers import RegisterTokens


@torch.no_grad()
@pytest.mark.parametrize("prefix_tokens", [0, 1, 2])
def test_stand_between_the_tokens_in_front_and_the_patches(prefix_tokens: int) -> None:
    """Every sample gets the same registers at their place; the other tokens keep their order."""
    torch.manual_seed(0)
    layer, tokens_BND = RegisterTokens(3, 4), torch.randn(2, 7, 4)
    longer_BND = layer(tokens_BND, prefix_tokens)
    assert longer_BND.shape == (2, 10, 4)
    registers_BRD = longer_BND[:, prefix_tokens : prefix_tokens + 3]
    assert torch.equal(registers_BRD, layer.registers_1RD.expand(2, -1, -1))
    others = torch.cat([longer_BND[:, :prefix_tokens], longer_BND[:, prefix_tokens + 3 :]], dim=1)
    assert torch.equal(others, tokens_BND)


@torch.no_grad()
def test_stand_behind_the_class_token_by_default() -> None:
    """Without another word one token stays in front."""
    layer, tokens_BND = RegisterTokens(3, 4), torch.randn(2, 7, 4)
    assert torch.equal(layer(tokens_BND), layer(tokens_BND, 1))


@torch.no_grad()
def test_start_small_and_different() -> None:
    """Registers start as different small normal vectors, so that they can learn to differ."""
    torch.manual_seed(0)
    registers_RD = RegisterTokens(64, 96).registers_1RD[0]
    assert float(registers_RD.std()) == pytest.approx(0.02, rel=0.05)
    assert torch.unique(registers_RD, dim=0).shape[0] == 64
