"""Patch dropout keeps a random part of the patches in training, and all of them otherwise."""

from __future__ import annotations

import pytest
import torch

from patchline.pipeline.models.layers.patch_dropout import PatchDropout

B, PATCHES = 6, 20


def _tokens(prefix_tokens: int) -> torch.Tensor:
    """Return tokens that hold their image and their index."""
    N = prefix_tokens + PATCHES
    image_BN = torch.arange(B)[:, None].expand(-1, N)
    index_BN = torch.arange(N)[None].expand(B, -1)
    return torch.stack([image_BN, index_BN], dim=2).float()


@pytest.mark.parametrize("prefix_tokens", [0, 5])
@pytest.mark.parametrize(("rate", "kept"), [(0.25, 15), (0.72, 6), (0.99, 1)])
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


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.9, False)])
def test_changes_nothing_outside_training(rate: float, training: bool) -> None:
    """In evaluation, and at rate 0, every token and every place stays; nothing is drawn."""
    tokens_BND, places_N2, state = _tokens(1), torch.randn(21, 2), torch.get_rng_state()
    layer = PatchDropout(rate, 1).train(training)
    tokens, places = layer.with_places(tokens_BND, places_N2)
    assert torch.equal(tokens, tokens_BND)
    assert torch.equal(places, places_N2)
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
