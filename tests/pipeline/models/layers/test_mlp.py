"""The activations and the dropout of the MLP of a block."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.mlp import MLP


def _mlp(dropout: float = 0.0) -> MLP:
    torch.manual_seed(0)
    layer = MLP(6, 10, dropout)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def _tokens() -> torch.Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_drops_after_both_layers_in_training_alone() -> None:
    """In training, dropout zeroes outputs and hides hidden units; in evaluation nothing."""
    layer, plain = _mlp(dropout=0.5), _mlp()
    tokens_BND = _tokens().repeat(20, 1, 1)
    torch.testing.assert_close(layer.eval()(tokens_BND), plain(tokens_BND))
    dropped = layer.train()(tokens_BND)
    share = float((dropped == 0).float().mean())
    assert 0.4 < share < 0.6
    kept = dropped != 0
    only_outputs_dropped = torch.isclose(dropped, 2 * plain(tokens_BND), atol=1e-5) | ~kept
    assert not only_outputs_dropped.all()
