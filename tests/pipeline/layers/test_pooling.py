"""The four ways to make one vector of many tokens, against formulas and timm."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from timm.layers import AttentionPoolLatent
from torch import nn

from patchline.pipeline.layers.pooling import (
    AttentionPooling,
    AveragePooling,
    ClassTokenPooling,
    SequencePooling,
)

B, N, D, H, M = 3, 7, 24, 4, 40


def _tokens() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))


def _randomised(layer: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)


def test_the_class_token_is_the_first() -> None:
    """Class token pooling returns the first token as it is."""
    assert torch.equal(ClassTokenPooling()(_tokens()), _tokens()[:, 0])


@pytest.mark.parametrize("prefix_tokens", [0, 1, 3])
def test_the_average_leaves_out_what_stands_in_front(prefix_tokens: int) -> None:
    """Average pooling sums the patches over their number."""
    patches = _tokens()[:, prefix_tokens:]
    expected = patches.sum(dim=1) / (N - prefix_tokens)
    torch.testing.assert_close(AveragePooling(prefix_tokens)(_tokens()), expected)


@torch.no_grad()
def test_sequence_pooling_equals_its_formula() -> None:
    """Each token counts by the exponential of one linear map of it."""
    layer = SequencePooling(D)
    _randomised(layer)
    expected = torch.zeros(B, D)
    for image, tokens_ND in enumerate(_tokens()):
        weights = [
            math.exp(float(token_D @ layer.importance.weight[0] + layer.importance.bias[0]))
            for token_D in tokens_ND
        ]
        for weight, token_D in zip(weights, tokens_ND, strict=True):
            expected[image] += weight / sum(weights) * token_D
    torch.testing.assert_close(layer(_tokens()), expected, atol=1e-5, rtol=1e-5)


def test_attention_pooling_equals_timm() -> None:
    """From the same weights it is timm's latent attention pooling, in answer and gradients."""
    ours = AttentionPooling(D, H, M)
    theirs = AttentionPoolLatent(
        D, num_heads=H, mlp_ratio=M / D, norm_layer=partial(nn.LayerNorm, eps=1e-6)
    )
    _randomised(ours)
    names = {
        "probe_11D": "latent",
        "query": "q",
        "key_value": "kv",
        "projection": "proj",
        "norm": "norm",
        "mlp.expand": "mlp.fc1",
        "mlp.contract": "mlp.fc2",
    }

    def their_name(name: str) -> str:
        stem, _, last = name.rpartition(".")
        return f"{names[stem]}.{last}" if stem else names[name]

    theirs.load_state_dict({their_name(name): p for name, p in ours.state_dict().items()})
    found, expected = ours(_tokens()), theirs(_tokens())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for answer in (found, expected):
        answer.square().sum().backward()
    for name, parameter in ours.named_parameters():
        gradient = theirs.get_parameter(their_name(name)).grad
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-3, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layer", [AveragePooling(), SequencePooling(D), AttentionPooling(D, H, M)])
def test_pooling_of_all_tokens_knows_no_order(layer: nn.Module) -> None:
    """Tokens in another order are pooled to the same vector."""
    _randomised(layer)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(layer(_tokens()[:, order]), layer(_tokens()), atol=1e-5, rtol=1e-5)


def test_refuses_heads_that_do_not_divide() -> None:
    """An embedding that the heads cannot share evenly is refused with both numbers."""
    with pytest.raises(ValueError, match=r"24 .* 5"):
        AttentionPooling(D, 5, M)
