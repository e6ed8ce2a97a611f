"""What a token sees is measured alike for every kind of layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import PluginError
from patchline.pipeline.evaluation.visual_guide.receptive_field import (
    Box,
    ReceptiveField,
    Span,
    measure,
)
from patchline.plugin_api import PatchTokens

D = 6


class Tokens(nn.Module):
    """Turn a feature map into tokens, row by row."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token for each place of the feature map."""
        features_BDhw = self.layers(images_BCHW)
        rows, columns = features_BDhw.shape[2:]
        return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), (rows, columns))


def _measured(*layers: nn.Module, height: int = 24, width: int = 24) -> ReceptiveField:
    return measure(Tokens(*layers), height, width)


def _conv(kernel: int, stride: int, padding: int = 0, channels: int = 3) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(channels, D, kernel, stride, padding)


@pytest.mark.parametrize(
    ("layers", "size", "grid", "stride", "token", "box"),
    [
        ([_conv(8, 8)], 8, (3, 2), 8, (2, 1), (16, 24, 8, 16)),
        ([_conv(7, 4, padding=3)], 7, (6, 4), 4, (2, 3), (5, 12, 9, 16)),
        ([_conv(7, 4, padding=3)], 7, (6, 4), 4, (0, 3), (0, 4, 9, 16)),  # cut at the border
        (
            [_conv(3, 2, 1), nn.BatchNorm2d(D), nn.ReLU(), _conv(3, 2, 1, channels=D)],
            *(7, (6, 4), 4, (2, 3), (5, 12, 9, 16)),
        ),
    ],
    ids=["side by side", "overlapping", "border", "two convolutions"],
)
def test_a_token_sees_a_box(
    layers: list[nn.Module],
    size: int,
    grid: tuple[int, int],
    stride: int,
    token: tuple[int, int],
    box: tuple[int, int, int, int],
) -> None:
    """Of the kernels, moved by their strides and cut at the border, whatever is between them."""
    field = _measured(*layers, height=24, width=16)
    assert (field.grid, field.size, field.stride) == (grid, (size, size), (stride, stride))
    assert field.box(*token) == Box(Span(*box[:2]), Span(*box[2:]))
    counts = field.count_map()
    assert (counts.min(), counts.max()) == (1, 1 if size == stride else 4)
    assert not field.is_cut


def test_a_group_norm_does_not_make_every_pixel_seen() -> None:
    """The little that a group norm takes from each pixel of the image does not widen the box."""
    norm = nn.GroupNorm(1, D)
    field = _measured(_conv(3, 2, 1), norm, _conv(3, 2, 1, channels=D), height=48, width=48)
    assert np.all(field.influence_HW > 0)
    assert field.size == (7, 7)


def test_influence_is_that_of_the_weights() -> None:
    """A pixel whose weights are three times as large has three times the influence."""
    convolution = nn.Conv2d(1, 400, 2, 2)
    relative = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    nn.init.normal_(convolution.weight, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        convolution.weight /= convolution.weight.square().sum((0, 1)).sqrt()
        convolution.weight *= relative
    field = measure(Tokens(convolution), 6, 6, channels=1)
    top, left = field.box(*field.inner_token).rows.start, field.box(*field.inner_token).columns[0]
    found = field.influence_HW[top : top + 2, left : left + 2] * 3
    np.testing.assert_allclose(found, relative, rtol=0.35)
    assert np.count_nonzero(field.influence_HW) == 4
    assert field.influence_HW.max() == 1


def test_measuring_changes_nothing_and_repeats() -> None:
    """The module, its mode, torch's generator and the result are the same after measuring twice."""
    embedding = Tokens(_conv(4, 4), nn.BatchNorm2d(D), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in embedding.state_dict().items()}
    state = torch.random.get_rng_state()
    with torch.no_grad():
        fields = [measure(embedding, 16, 16) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(module.training for module in embedding.modules())
    torch.testing.assert_close(dict(embedding.state_dict()), before, rtol=0, atol=0)
    assert np.array_equal(fields[0].influence_HW, fields[1].influence_HW)
    assert fields[0].size == (4, 4)


class _WrongGrid(Tokens):
    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return the tokens with a grid that they do not fill."""
        return PatchTokens(super().forward(images_BCHW).tokens_BND, (3, 5))


class _Blind(Tokens):
    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return tokens that do not depend on the image."""
        return super().forward(torch.zeros_like(images_BCHW))


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (_WrongGrid, "4 tokens for a grid of 3x5"),
        (_Blind, "Token 0 .* depends on no pixel"),
    ],
)
def test_a_broken_embedding_is_explained(broken: type[Tokens], text: str) -> None:
    """Tokens that do not fill the grid, or see nothing, are the plugin's error."""
    with pytest.raises(PluginError, match=text):
        measure(broken(_conv(4, 4)), 8, 8)
