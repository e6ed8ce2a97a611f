"""The encoder block's dropout, stochastic depth and layer scale; its parity is in tests/plugins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.encoder_block import EncoderBlock


def _block(attention_dropout: float = 0.0, **settings: Any) -> EncoderBlock:
    torch.manual_seed(0)
    block = EncoderBlock(MultiHeadSelfAttention(12, 3, attention_dropout), 20, **settings)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.4)
    return block


def test_layer_scale_starts_at_its_gain() -> None:
    """Both gains start at the value that was set; without one there is nothing to learn."""
    block = EncoderBlock(MultiHeadSelfAttention(12, 3), 20, layer_scale=1e-5)
    added = dict(block.named_parameters()).keys() - dict(_block().named_parameters()).keys()
    assert added == {"attention_scale.gain_D", "mlp_scale.gain_D"}
    for name in added:
        assert torch.equal(block.get_parameter(name), torch.full((12,), 1e-5))


@torch.no_grad()
def test_samples_skip_each_branch_by_themselves() -> None:
    """With stochastic depth every sample keeps or skips attention and MLP independently."""
    tokens_BND = torch.randn(1, 5, 12).expand(64, -1, -1)
    output_BND = _block(stochastic_depth=0.5).train()(tokens_BND)
    alike_B = (torch.cdist(output_BND.flatten(1), output_BND.flatten(1)) < 0.05).sum(dim=1)
    assert float((1 / alike_B).sum()) == pytest.approx(4)  # kinds of outputs
    assert int(alike_B.min()) >= 4
    assert bool((output_BND == tokens_BND).all(dim=(1, 2)).any())


@torch.no_grad()
def test_dropout_acts_in_training_alone() -> None:
    """Each kind of dropout changes the output in training and none in evaluation."""
    tokens_BND, plain = torch.randn(2, 5, 12), _block().eval()
    for name in ("dropout", "attention_dropout", "stochastic_depth"):
        block = _block(**{name: 0.4})
        torch.testing.assert_close(block.eval()(tokens_BND), plain(tokens_BND))
        assert not torch.allclose(block.train()(tokens_BND), plain(tokens_BND))
