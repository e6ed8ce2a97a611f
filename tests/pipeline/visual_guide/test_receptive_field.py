"""What a token sees is measured alike for every kind of layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import PluginError
from patchline.pipeline.visual_guide.receptive_field import Box, ReceptiveField, Span, measure
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


def test_patches_side_by_side() -> None:
    """A convolution with kernel = stride sees its patch alone, and each pixel is in one patch."""
    field = _measured(_conv(8, 8), height=24, width=16)
    assert (field.grid, field.size, field.stride) == ((3, 2), (8, 8), (8, 8))
    assert field.count_map().tolist() == np.ones((24, 16)).tolist()
    assert not field.is_cut
    assert field.box(2, 1) == Box(Span(16, 24), Span(8, 16))


def test_overlapping_patches() -> None:
    """Kernel 7 and stride 4 give boxes of 7x7 pixels, cut at the border, and up to 4 of a pixel."""
    field = _measured(_conv(7, 4, padding=3), height=24, width=32)
    assert (field.grid, field.size, field.stride) == ((6, 8), (7, 7), (4.0, 4.0))
    assert field.box(2, 3) == Box(Span(5, 12), Span(9, 16))
    assert field.box(0, 7) == Box(Span(0, 4), Span(25, 32))
    assert field.count_map().max() == 4


def test_two_strided_convolutions() -> None:
    """Two 3x3 convolutions of stride 2 see 7x7 pixels with stride 4, whatever is between them."""
    between = nn.Sequential(nn.BatchNorm2d(D), nn.ReLU())
    field = _measured(_conv(3, 2, 1), between, _conv(3, 2, 1, channels=D), height=32, width=32)
    assert (field.grid, field.size, field.stride) == ((8, 8), (7, 7), (4.0, 4.0))
    assert field.box(3, 3) == Box(Span(9, 16), Span(9, 16))


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
