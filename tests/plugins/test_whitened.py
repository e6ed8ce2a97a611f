"""The whitened stem: what its filters do to images, its widths, its grid, its start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import load_patch_embedding
from patchline.pipeline.training.start import initialise_from_images
from patchline.plugin_api import PatchEmbeddingContext
from patchline.plugins.patch_embeddings.whitened_module import (
    WhitenedStem,
    early_widths,
    stage_widths,
)
from tests.plugins.model_parity import image_spec


def _stem(
    channels: int = 3, side: int = 32, settings: dict[str, Any] | None = None
) -> WhitenedStem:
    torch.manual_seed(0)
    plugin = load_patch_embedding("whitened")
    built: Any = plugin.build(
        plugin.config_class.model_validate(settings or {}),
        PatchEmbeddingContext(channels, side, side, embed_dim=16),
    )
    stem: WhitenedStem = built
    return stem


def _smooth_images(count: int, channels: int) -> torch.Tensor:
    """Return images whose neighbouring pixels and channels are correlated, as in photographs."""
    noise = torch.randn(count, channels, 32, 32, generator=torch.Generator().manual_seed(1))
    smooth = functional.avg_pool2d(noise, 3, stride=1, padding=1)
    return 2 * smooth + smooth.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(("channels", "mirrored"), [(1, False), (3, True)])
def test_the_filters_whiten_the_images(channels: int, *, mirrored: bool) -> None:
    """Responses to the images are uncorrelated with variance near 1; the second half negates."""
    stem = _stem(channels, settings={"mirror_equivariant": mirrored})
    images = 10 * _smooth_images(200, channels)
    images = torch.cat((images, images.flip(-1))) if mirrored else images
    stem.initialise_from(images)
    responses = functional.conv2d(images, stem.whitening).transpose(0, 1).flatten(1)
    side = 4 * channels
    torch.testing.assert_close(responses[side:], -responses[:side], rtol=1e-4, atol=1e-5)
    second_moments = responses[:side] @ responses[:side].T / responses.shape[1]
    strong = second_moments.diagonal() > 0.5  # the faintest components are held back
    assert strong.sum() >= side // 2
    assert torch.allclose(
        second_moments.diagonal()[strong], torch.ones(int(strong.sum())), atol=0.1
    )
    assert (second_moments - second_moments.diagonal().diag()).abs().max() < 1e-3


def test_the_widths_grow_to_the_embedding() -> None:
    """The widths are 48, 96 and 128 for D = 128; deeper stems begin narrower."""
    assert stage_widths(2, 128) == (48, 96, 128)
    assert (stage_widths(4, 128), stage_widths(5, 16)[0]) == ((16, 24, 48, 96, 128), 8)
    assert stage_widths(2, 128, factor=2.0) == (96, 192, 128)
    assert (early_widths(3, 256), early_widths(4, 128)) == ((64, 256, 256), (16, 32, 128, 128))
    assert early_widths(3, 256, factor=0.5) == (32, 128, 256)


def test_early_pooling_comes_before_norm_and_activation() -> None:
    """A stage is conv, max-pool, norm, GELU, conv, norm, GELU, computed here with functions."""
    stem = _stem(settings={"early_pooling": True, "num_halvings": 3}).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = functional.gelu(functional.conv2d(images, stem.whitening))
    for number, layers in enumerate(stem.stages):
        convolution, norm = layers[0], layers[-2]  # type: ignore[index]  # a Sequential each
        expected = functional.conv2d(expected, convolution.weight, padding=1)
        expected = functional.max_pool2d(expected, 2) if number % 2 == 0 else expected
        expected = functional.gelu(norm(expected))
    assert number == 5
    tokens = stem(images)
    assert tokens.grid == stem.grid == (3, 3)
    found = tokens.tokens_BND.transpose(1, 2).unflatten(2, (3, 3))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "side", "early"), [(1, 28, False), (3, 32, True), (3, 37, True)]
)
def test_mirroring_the_image_reverses_the_columns_of_tokens(
    channels: int, side: int, *, early: bool
) -> None:
    """So it is after training has changed the statistics of the norms, and not by being trivial."""
    stem = _mirrored(channels, side, early=early)
    images = torch.randn(4, channels, side, side)
    tokens, mirrored = stem(images), stem(images.flip(-1))
    assert tokens.grid == mirrored.grid == stem.grid
    maps, reversed_maps = (each.tokens_BND.unflatten(1, stem.grid) for each in (tokens, mirrored))
    torch.testing.assert_close(reversed_maps.flip(2), maps, rtol=1e-4, atol=1e-4)
    assert (reversed_maps - maps).abs().max() > 0.1  # the images are not symmetric themselves
    upside_down = stem(images.flip(-2)).tokens_BND.unflatten(1, stem.grid).flip(1)
    assert (upside_down - maps).abs().max() > 0.1


def test_mirrored_filters_need_an_even_dimension() -> None:
    """An odd embedding dimension is refused with the remedy."""
    plugin = load_patch_embedding("whitened")
    config = plugin.config_class.model_validate({"mirror_equivariant": True})
    with pytest.raises(
        ConfigError, match=r"model\.embed_dim 15 is odd.*Set model\.embed_dim to 16"
    ):
        plugin.build(config, PatchEmbeddingContext(3, 32, 32, embed_dim=15))


def _mirrored(channels: int, side: int, *, early: bool) -> WhitenedStem:
    """Return a mirror-equivariant stem whose norms have seen images."""
    halvings = 3 if early else 2
    settings = {"mirror_equivariant": True, "early_pooling": early, "num_halvings": halvings}
    stem = _stem(channels, side, settings)
    images = torch.randn(16, channels, side, side)
    stem.initialise_from(functional.avg_pool2d(images, 3, stride=1, padding=1))
    with torch.no_grad():
        for norm in (each for each in stem.modules() if isinstance(each, torch.nn.BatchNorm2d)):
            norm.weight.normal_(1, 0.2)
            norm.bias.normal_(0, 0.2)
        stem.train()(images)
    return stem.eval()


def test_training_initialises_from_training_images_alone() -> None:
    """The same seed and rows give the same filters; other images are not looked at."""
    images = (_smooth_images(60, 3).permute(0, 2, 3, 1) * 40 + 128).clip(0, 255).byte().numpy()
    rows = np.arange(40, dtype=np.int64)
    filters = []
    for others in (0, 255):
        images[40:] = others
        model = torch.nn.Sequential(_stem())
        initialise_from_images(model, images, rows, image_spec(), seed=3)
        filters.append(model.state_dict()["0.whitening"].clone())
    assert torch.equal(filters[0], filters[1])
    assert not torch.equal(filters[0], _stem().whitening)
