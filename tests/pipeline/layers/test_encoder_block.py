"""The encoder block's dropout, stochastic depth and layer scale; its parity is in tests/plugins."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.encoder_block import EncoderBlock

D, H, M = 12, 3, 20


def _block(
    *,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    layer_scale: float | None = None,
) -> EncoderBlock:
    torch.manual_seed(0)
    block = EncoderBlock(
        MultiHeadSelfAttention(D, H, attention_dropout),
        M,
        dropout=dropout,
        stochastic_depth=stochastic_depth,
        layer_scale=layer_scale,
    )
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.4)  # the norms too, so that they cannot be left out
    return block


def _tokens(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 5, D, generator=torch.Generator().manual_seed(1))


def _normalised(norm: nn.Module, tokens_BND: torch.Tensor) -> torch.Tensor:
    mean = tokens_BND.mean(dim=2, keepdim=True)
    variance = ((tokens_BND - mean) ** 2).mean(dim=2, keepdim=True)
    assert isinstance(norm, nn.LayerNorm)
    return (tokens_BND - mean) / torch.sqrt(variance + 1e-6) * norm.weight + norm.bias


def _branches(
    block: EncoderBlock, tokens_BND: torch.Tensor, attention_share: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return MSA(LN(z)), and MLP(LN(z')) for z' = share * MSA(LN(z)) + z."""
    attended = block.attention(_normalised(block.attention_norm, tokens_BND))
    between = attention_share * attended + tokens_BND
    hidden = functional.linear(
        _normalised(block.mlp_norm, between), block.mlp.expand.weight, block.mlp.expand.bias
    )
    transformed = functional.linear(
        functional.gelu(hidden), block.mlp.contract.weight, block.mlp.contract.bias
    )
    return attended, transformed


def test_layer_scale_starts_at_its_gain() -> None:
    """Both gains start at the value that was set; without one there is nothing to learn."""
    attention = MultiHeadSelfAttention(D, H)
    with_gains = EncoderBlock(attention, M, layer_scale=1e-5)
    added = dict(with_gains.named_parameters()).keys() - dict(_block().named_parameters()).keys()
    assert added == {"attention_scale.gain_D", "mlp_scale.gain_D"}
    for name in added:
        assert torch.equal(with_gains.get_parameter(name), torch.full((D,), 1e-5))


@torch.no_grad()
def test_samples_skip_each_branch_by_themselves() -> None:
    """With stochastic depth every sample keeps or skips attention and MLP independently."""
    block = _block(stochastic_depth=0.5).train()
    tokens_BND = _tokens(batch=64)
    output_BND = block(tokens_BND)
    found = torch.zeros(64)
    for share in (0.0, 2.0):
        attended, transformed = _branches(block, tokens_BND, torch.tensor(share))
        for mlp_share in (0.0, 2.0):
            expected = tokens_BND + share * attended + mlp_share * transformed
            same_B = torch.isclose(output_BND, expected, atol=1e-4).all(dim=(1, 2))
            assert 4 <= int(same_B.sum()) <= 40
            found += same_B
    assert torch.equal(found, torch.ones(64))


@torch.no_grad()
def test_dropout_acts_in_training_alone() -> None:
    """Each kind of dropout changes the output in training and none in evaluation."""
    tokens_BND, plain = _tokens(), _block().eval()
    blocks = (
        _block(dropout=0.4),
        _block(attention_dropout=0.4),
        _block(stochastic_depth=0.4),
    )
    for block in blocks:
        torch.testing.assert_close(block.eval()(tokens_BND), plain(tokens_BND))
        assert not torch.allclose(block.train()(tokens_BND), plain(tokens_BND))
