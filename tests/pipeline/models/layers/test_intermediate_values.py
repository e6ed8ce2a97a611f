"""What a ViT computes on the way: complete, consistent, and gone without a trace."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.intermediate_values import record_values
from patchline.pipeline.models.model_building import build_model
from tests.plugins.model_parity import image_spec

DEPTH = 3
VITS: dict[str, dict[str, Any]] = {
    "vit": {"name": "vit", "layer_scale": 0.5},
    "vit without class token": {"name": "vit", "pooling": "attention", "positions": "sine_cosine"},
    "simple_vit": {"name": "simple_vit"},
    "vit_registers": {"name": "vit_registers"},
    "rope_vit axial": {"name": "rope_vit", "frequencies": "axial"},
    "rope_vit mixed": {"name": "rope_vit", "frequencies": "mixed", "absolute_positions": True},
    "cct": {"name": "cct"},
    "vit_small_data": {"name": "vit_small_data"},
}


def _model(name: str) -> Any:
    torch.manual_seed(0)
    choice = ModelChoice.model_validate({**VITS[name], "depth": DEPTH})
    model = build_model(choice, image_spec(16), num_classes=5)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)  # so that attention is far from uniform
    return model.eval()


def _images(seed: int = 7) -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def _attentions(model: nn.Module) -> list[MultiHeadSelfAttention]:
    return [m for m in model.modules() if isinstance(m, MultiHeadSelfAttention)]


@torch.no_grad()
@pytest.mark.parametrize("name", VITS)
def test_answers_stay_and_every_block_is_recorded(name: str) -> None:
    """The logits are those outside, where attention runs fused; each value follows from others."""
    model = _model(name)
    expected = model(_images())
    with record_values(model) as values:
        logits_BK = model(_images())
    torch.testing.assert_close(logits_BK, expected, atol=1e-5, rtol=1e-5)
    last_BND = values.blocks[-1].tokens_out_BND
    torch.testing.assert_close(model.head(model.pooling(model.norm(last_BND))), logits_BK)
    assert len(values.blocks) == DEPTH
    for before, after in itertools.pairwise(values.blocks):
        assert torch.equal(after.tokens_in_BND, before.tokens_out_BND)
    for block in values.blocks:
        found = block.attention
        products = (
            found.query_BHNd @ found.key_BHNd.transpose(2, 3) / found.key_BHNd.shape[3] ** 0.5
        )
        seen = found.scores_BHNN > float("-inf")
        torch.testing.assert_close(found.scores_BHNN[seen], products[seen], atol=1e-4, rtol=1e-4)
        itself = torch.eye(seen.shape[-1], dtype=torch.bool).expand_as(seen)
        assert torch.equal(~seen, itself if name == "vit_small_data" else itself & False)
        torch.testing.assert_close(found.weights_BHNN, torch.softmax(found.scores_BHNN, dim=3))
        torch.testing.assert_close(found.mixed_BHNd, found.weights_BHNN @ found.value_BHNd)


class _BrokenError(Exception):
    """What the tests below raise."""


def _assert_nothing_left(model: nn.Module) -> None:
    assert all(attention.observer is None for attention in _attentions(model))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@torch.no_grad()
def test_nothing_stays_behind_after_an_exception() -> None:
    """When the caller fails inside the context, no observer and no hook is left."""
    model = _model("vit")
    with pytest.raises(_BrokenError), record_values(model):
        raise _BrokenError
    _assert_nothing_left(model)


def test_a_model_without_attention_is_refused() -> None:
    """A model that has no attention of ours is refused with its name, and left untouched."""
    model = nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(4, 2))
    with pytest.raises(ValueError, match="Sequential has no self-attention"), record_values(model):
        pass
    assert not model._forward_pre_hooks


def test_a_model_is_recorded_once_at_a_time() -> None:
    """A second recording of the same model is refused, and the first one continues."""
    model = _model("vit")
    with record_values(model) as values:
        with pytest.raises(ValueError, match="already"), record_values(model):
            pass
        model(_images())
    assert len(values.blocks) > 0
