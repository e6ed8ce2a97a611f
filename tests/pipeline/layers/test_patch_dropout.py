"""Patch dropout keeps a random part of the patches in training, and all of them otherwise."""

from __future__ import annotations

import pytest
import torch

from patchline.pipeline.layers.patch_dropout import PatchDropout

B, PATCHES = 6, 20


def _tokens(prefix_tokens: int) -> torch.Tensor:
    """Return tokens that hold their image and their index."""
    N = prefix_tokens + PATCHES
    image_BN = torch.arange(B)[:, None].expand(-1, N)
    index_BN = torch.arange(N)[None].expand(B, -1)
    return torch.stack([image_BN, index_BN], dim=2).float()


@pytest.mark.parametrize("prefix_tokens", [0, 1, 5])
@pytest.mark.parametrize(("rate", "kept"), [(0.25, 15), (0.5, 10), (0.72, 6), (0.99, 1)])
def test_keeps_the_share_in_order_behind_what_stands_in_front(
    rate: float, kept: int, prefix_tokens: int
) -> None:
    """In training the tokens in front and the share of patches stay, whole and in their order."""
    torch.manual_seed(0)
    found = PatchDropout(rate, prefix_tokens).train()(_tokens(prefix_tokens))
    assert found.shape == (B, prefix_tokens + kept, 2)
    assert torch.equal(found[:, :, 0], torch.arange(B).float()[:, None].expand(found.shape[:2]))
    indices_BM = found[:, :, 1]
    front_P = torch.arange(prefix_tokens).float()
    assert torch.equal(indices_BM[:, :prefix_tokens], front_P.expand(B, -1))
    assert (indices_BM.diff(dim=1) > 0).all()


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_changes_nothing_outside_training(rate: float) -> None:
    """In evaluation every token and every place stays."""
    layer, tokens_BND, places_N2 = PatchDropout(rate, 1).eval(), _tokens(1), torch.randn(21, 2)
    assert torch.equal(layer(tokens_BND), tokens_BND)
    tokens, places = layer.with_places(tokens_BND, places_N2)
    assert torch.equal(tokens, tokens_BND)
    assert torch.equal(places, places_N2)


def test_changes_nothing_at_rate_zero() -> None:
    """At rate 0 every token stays in training too, and nothing is drawn."""
    layer, state = PatchDropout(0.0, 1).train(), torch.get_rng_state()
    assert torch.equal(layer(_tokens(1)), _tokens(1))
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_for_each_image_and_step_from_the_generator_of_torch() -> None:
    """Images and steps keep other patches, and the same seed keeps the same ones."""
    layer = PatchDropout(0.5).train()
    torch.manual_seed(3)
    first, second = layer(_tokens(0)), layer(_tokens(0))
    assert torch.unique(first[:, :, 1], dim=0).shape[0] == B
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(layer(_tokens(0)), first)


def test_every_patch_is_kept_as_often() -> None:
    """Over many images each patch stays as often as the rate says."""
    torch.manual_seed(0)
    index_N1 = torch.arange(PATCHES).float()[:, None]
    kept = PatchDropout(0.75).train()(index_N1.expand(4000, -1, -1)).long().flatten()
    shares = torch.bincount(kept, minlength=PATCHES) / 4000
    assert float((shares - 0.25).abs().max()) < 0.04


def test_places_stay_with_their_tokens() -> None:
    """Every kept token keeps its place, image by image."""
    torch.manual_seed(0)
    places_N2 = torch.randn(1 + PATCHES, 2)
    tokens, places = PatchDropout(0.5, 1).train().with_places(_tokens(1), places_N2)
    assert places.shape == (B, 11, 2)
    assert torch.equal(places, places_N2[tokens[:, :, 1].long()])


def test_only_kept_tokens_get_a_gradient() -> None:
    """The gradient of a token that was left out is zero, that of a kept one is not."""
    torch.manual_seed(0)
    tokens_BND = _tokens(1).requires_grad_()
    kept = PatchDropout(0.5, 1).train()(tokens_BND)
    kept.sum().backward()
    expected = torch.zeros_like(tokens_BND)
    for image in range(B):
        expected[image, kept[image, :, 1].detach().long()] = 1.0
    assert torch.equal(torch.as_tensor(tokens_BND.grad), expected)
