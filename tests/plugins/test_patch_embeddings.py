"""Both patch embeddings are one map, row by row over the grid; patch sizes are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import (
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
)
from patchline.plugins.patch_embeddings import conv, linear
from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig, default_patch_size

D = 10
PLUGINS = {"linear": linear.plugin, "conv": conv.plugin}


def _built(
    plugin: PatchEmbeddingPlugin[PatchGridConfig], patch_size: int, shape: tuple[int, int, int]
) -> Any:
    channels, height, width = shape
    torch.manual_seed(0)
    context = PatchEmbeddingContext(channels, height, width, D)
    embedding: Any = plugin.build(PatchGridConfig(patch_size=patch_size), context)
    nn.init.normal_(embedding.projection.bias)
    return embedding


def _traits(height: int, width: int) -> DataTraits:
    return DataTraits(channels=3, height=height, width=width, num_classes=2, mirror_symmetric=True)


@torch.no_grad()
@pytest.mark.parametrize("patch_size", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 16), (3, 24, 8)])
def test_linear_and_conv_are_the_same_map(patch_size: int, shape: tuple[int, int, int]) -> None:
    """From the same weights, cutting and projecting equals the strided convolution."""
    cutting = _built(linear.plugin, patch_size, shape)
    convolving = _built(conv.plugin, patch_size, shape)
    convolving.projection.weight.copy_(
        cutting.projection.weight.reshape(D, shape[0], patch_size, patch_size)
    )
    convolving.projection.bias.copy_(cutting.projection.bias)
    images = torch.randn(3, *shape)
    ours, theirs = cutting(images), convolving(images)
    torch.testing.assert_close(ours.tokens_BND, theirs.tokens_BND, atol=1e-5, rtol=1e-5)
    assert ours.grid == theirs.grid == (shape[1] // patch_size, shape[2] // patch_size)


@torch.no_grad()
@pytest.mark.parametrize("name", list(PLUGINS))
def test_a_token_stands_for_one_patch_row_by_row(name: str) -> None:
    """A change inside one patch changes the token at row * columns + column, and no other."""
    embedding = _built(PLUGINS[name], 4, (3, 12, 20))
    images = torch.randn(1, 3, 12, 20)
    before: PatchTokens = embedding(images)
    rows, columns = before.grid
    assert (rows, columns) == (3, 5) == embedding.grid
    for row in range(rows):
        for column in range(columns):
            changed = images.clone()
            changed[0, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 1.0
            difference_N = (embedding(changed).tokens_BND - before.tokens_BND)[0].abs().amax(1)
            assert (difference_N > 1e-4).nonzero().flatten().tolist() == [row * columns + column]


@pytest.mark.parametrize(
    ("patch_size", "height", "width", "divisors"),
    [
        (5, 32, 32, "2, 4, 8, 16, 32"),
        (15, 28, 28, "2, 4, 7, 14, 28"),
        (8, 24, 12, "2, 3, 4, 6, 12"),
        (4, 31, 31, "31"),
    ],
)
def test_a_patch_size_that_does_not_divide_is_refused(
    patch_size: int, height: int, width: int, divisors: str
) -> None:
    """The error names the patch size, the image and every divisor that both sides share."""
    config = PatchGridConfig(patch_size=patch_size)
    with pytest.raises(ConfigError) as caught:
        config.resolved_for(_traits(height, width))
    text = str(caught.value)
    assert text.startswith(f"patch_size {patch_size} does not divide the {height}x{width} image")
    assert f"one of {divisors}," in text


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (224, 224, 16),
        (96, 96, 12),
        (64, 64, 8),
        (32, 32, 4),
        (28, 28, 4),
        (8, 8, 2),
        (48, 32, 4),
        (31, 31, 1),
    ],
)
def test_the_default_patch_size(height: int, width: int, expected: int) -> None:
    """By default about eight patches stand side by side, each of at most 16 pixels."""
    assert default_patch_size(height, width) == expected
    assert PatchGridConfig().resolved_for(_traits(height, width)).patch_size == expected


def test_the_default_patch_size_always_divides() -> None:
    """Whatever the image, the default divides it and is at most 16 pixels."""
    for height in range(4, 257):
        for width in (height, 48, 97):
            patch_size = default_patch_size(height, width)
            assert height % patch_size == width % patch_size == 0
            assert 1 <= patch_size <= 16
