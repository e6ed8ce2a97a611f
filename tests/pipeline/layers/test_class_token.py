"""The class token comes first, the same in every sample."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.layers.class_token import ClassToken


def test_puts_the_same_learned_token_before_every_sample() -> None:
    """The first token is the learned one in every sample; the others follow unchanged."""
    layer = ClassToken(4)
    nn.init.normal_(layer.token_11D)
    tokens_BND = torch.randn(3, 5, 4)
    longer = layer(tokens_BND)
    assert longer.shape == (3, 6, 4)
    assert torch.equal(longer[:, 0], layer.token_11D[0].expand(3, -1))
    assert torch.equal(longer[:, 1:], tokens_BND)


def test_learns_from_every_sample() -> None:
    """Its gradient is the sum over the samples of the batch."""
    layer = ClassToken(4)
    layer(torch.randn(3, 5, 4))[:, 0].sum().backward()
    assert torch.equal(torch.as_tensor(layer.token_11D.grad), torch.full((1, 1, 4), 3.0))
