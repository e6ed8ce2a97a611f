"""Both classification heads against their formulas."""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.layers.head import LinearHead, TanhHead


@torch.no_grad()
def test_the_linear_head_is_one_linear_map() -> None:
    """Logits are the features times the weights, plus the biases."""
    head = LinearHead(6, 4)
    nn.init.normal_(head.bias)
    features_BD = torch.randn(5, 6)
    expected = features_BD @ head.weight.T + head.bias
    torch.testing.assert_close(head(features_BD), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_the_tanh_head_has_one_hidden_layer() -> None:
    """Logits are a linear map of tanh of a linear map that keeps the dimension."""
    head = TanhHead(6, 4)
    nn.init.normal_(head.output.weight)
    features_BD = torch.randn(5, 6)
    hidden_BD = torch.tanh(features_BD @ head.hidden.weight.T + head.hidden.bias)
    expected = hidden_BD @ head.output.weight.T + head.output.bias
    assert hidden_BD.shape == features_BD.shape
    torch.testing.assert_close(head(features_BD), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_a_new_head_prefers_no_class() -> None:
    """Before training all classes are about equally probable, whatever the features."""
    torch.manual_seed(0)
    for head in (LinearHead(96, 10), TanhHead(96, 10)):
        probabilities_BK = torch.softmax(head(torch.randn(50, 96)), dim=1)
        assert float((probabilities_BK - 0.1).abs().max()) < 0.1
