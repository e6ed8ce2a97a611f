"""What a ViT computes on the way: complete, consistent, and gone without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.intermediate_values import recorded
from patchline.pipeline.models.model_building import build_model
from patchline.plugin_api import ImageSpec

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
    image = ImageSpec(
        channels=3, height=16, width=16, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    choice = ModelChoice.model_validate({**VITS[name], "depth": DEPTH})
    model = build_model(choice, image, num_classes=5)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)  # so that attention is far from uniform
    return model.eval()


def _images(seed: int = 7) -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def _attentions(model: nn.Module) -> list[MultiHeadSelfAttention]:
    return [m for m in model.modules() if isinstance(m, MultiHeadSelfAttention)]


@pytest.fixture
def fused_calls() -> Iterator[list[int]]:
    """Count the calls of torch's fused attention: the list grows by one for each."""
    calls: list[int] = []
    fused = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return fused(*args, **kwargs)

    with patch.object(functional, "scaled_dot_product_attention", counted):
        yield calls


@torch.no_grad()
@pytest.mark.parametrize("name", list(VITS))
def test_answers_stay_and_every_block_is_recorded(name: str) -> None:
    """The logits agree to 1e-5 with those outside, and all blocks are there in their order."""
    model = _model(name)
    expected = model(_images())
    with recorded(model) as values:
        assert values.blocks == []
        logits_BK = model(_images())
    torch.testing.assert_close(logits_BK, expected, atol=1e-5, rtol=1e-5)
    assert float(expected.std()) > 0.01
    assert len(values.blocks) == DEPTH
    for before, after in zip(values.blocks, values.blocks[1:], strict=False):
        assert torch.equal(after.tokens_in_BND, before.tokens_out_BND)
    last_BND = values.blocks[-1].tokens_out_BND
    torch.testing.assert_close(model.head(model.pooling(model.norm(last_BND))), logits_BK)


@torch.no_grad()
@pytest.mark.parametrize("name", list(VITS))
def test_values_follow_from_each_other(name: str) -> None:
    """Scores are products of queries and keys, weights their softmax, and rows sum to 1."""
    model = _model(name)
    with recorded(model) as values:
        model(_images())
    for block, attention in zip(values.blocks, _attentions(model), strict=True):
        found = block.attention
        H, d = attention.num_heads, attention.embed_dim // attention.num_heads
        B, N, _ = block.tokens_in_BND.shape
        assert found.query_BHNd.shape == found.value_BHNd.shape == (B, H, N, d)
        assert found.scores_BHNN.shape == found.weights_BHNN.shape == (B, H, N, N)
        products = found.query_BHNd @ found.key_BHNd.transpose(2, 3) / d**0.5
        seen_BHNN = found.scores_BHNN > float("-inf")
        torch.testing.assert_close(
            found.scores_BHNN[seen_BHNN], products[seen_BHNN], atol=1e-4, rtol=1e-4
        )
        assert int((~seen_BHNN).sum()) == (B * H * N if name == "vit_small_data" else 0)
        torch.testing.assert_close(found.weights_BHNN, torch.softmax(found.scores_BHNN, dim=3))
        torch.testing.assert_close(found.weights_BHNN.sum(3), torch.ones(B, H, N))
        assert float(found.weights_BHNN.std()) > 1e-3
        torch.testing.assert_close(
            found.mixed_BHNd, found.weights_BHNN @ found.value_BHNd, atol=1e-5, rtol=1e-5
        )


@torch.no_grad()
def test_the_first_tokens_are_the_embedded_patches() -> None:
    """The first block's input is the patches behind the class token, with their positions."""
    model = _model("vit")
    with recorded(model) as values:
        model(_images())
    patches = model.patch_embedding(_images())
    expected = model.position_embedding(model.class_token(patches.tokens_BND), patches.grid)
    assert torch.equal(values.blocks[0].tokens_in_BND, expected)


@torch.no_grad()
def test_a_call_replaces_the_values_of_the_call_before() -> None:
    """After two calls the values are those of the second alone."""
    model = _model("vit")
    with recorded(model) as twice:
        model(_images(1))
        model(_images(2))
    with recorded(model) as once:
        model(_images(2))
    assert len(twice.blocks) == DEPTH
    for block, expected in zip(twice.blocks, once.blocks, strict=True):
        assert torch.equal(block.tokens_out_BND, expected.tokens_out_BND)
        assert torch.equal(block.attention.weights_BHNN, expected.attention.weights_BHNN)


@torch.no_grad()
@pytest.mark.parametrize("name", list(VITS))
def test_a_model_that_nobody_asks_runs_fused(name: str, fused_calls: list[int]) -> None:
    """Outside of the context every block calls the fused kernel, inside none does."""
    model = _model(name)
    own = 1 if name == "vit without class token" else 0  # attention pooling is not recorded
    model(_images())
    assert len(fused_calls) == DEPTH + own
    with recorded(model):
        model(_images())
    assert len(fused_calls) == DEPTH + 2 * own
    model(_images())
    assert len(fused_calls) == 2 * DEPTH + 3 * own


class _BrokenError(Exception):
    """What the tests below raise."""


def _assert_nothing_left(model: nn.Module) -> None:
    assert all(attention.observer is None for attention in _attentions(model))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@torch.no_grad()
def test_nothing_stays_behind() -> None:
    """Afterwards no observer and no hook is left, and another call records nothing."""
    model = _model("vit")
    with recorded(model) as values:
        model(_images())
        kept = list(values.blocks)
    _assert_nothing_left(model)
    model(_images(3))
    assert values.blocks == kept


@torch.no_grad()
def test_nothing_stays_behind_after_an_exception() -> None:
    """When the caller fails inside the context, nothing is left either."""
    model = _model("vit")
    with pytest.raises(_BrokenError), recorded(model):
        raise _BrokenError
    _assert_nothing_left(model)


@torch.no_grad()
def test_a_failed_call_does_not_mix_into_the_next() -> None:
    """After a call that failed inside a block, the next one records its own values alone."""
    model = _model("vit")
    with recorded(model) as expected:
        model(_images(2))
    with recorded(model) as values:
        with (
            patch.object(model.blocks[1].mlp, "forward", side_effect=_BrokenError),
            pytest.raises(_BrokenError),
        ):
            model(_images(1))
        model(_images(2))
    assert len(values.blocks) == DEPTH
    for block, right in zip(values.blocks, expected.blocks, strict=True):
        assert torch.equal(block.attention.weights_BHNN, right.attention.weights_BHNN)
        assert torch.equal(block.tokens_out_BND, right.tokens_out_BND)


def test_gradients_flow_through_what_is_recorded() -> None:
    """A class's logit can be followed back to the attention weights of every block."""
    model = _model("vit")
    with recorded(model) as values:
        logits_BK = model(_images())
    weights = [block.attention.weights_BHNN for block in values.blocks]
    for gradient in torch.autograd.grad(logits_BK[:, 0].sum(), weights):
        assert float(gradient.abs().max()) > 0


@torch.no_grad()
def test_one_block_can_be_asked_alone() -> None:
    """A model may be a single block."""
    block = _model("vit").blocks[0]
    tokens_BND = torch.randn(2, 17, 96)
    with recorded(block) as values:
        output_BND = block(tokens_BND)
    (found,) = values.blocks
    assert torch.equal(found.tokens_in_BND, tokens_BND)
    assert torch.equal(found.tokens_out_BND, output_BND)


def test_a_model_without_attention_is_refused() -> None:
    """A model that has no attention of ours is refused with its name, and left untouched."""
    model = nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(4, 2))
    with pytest.raises(ValueError, match="Sequential has no self-attention"), recorded(model):
        pass
    assert not model._forward_pre_hooks


def test_a_model_is_recorded_once_at_a_time() -> None:
    """A second recording of the same model is refused, and the first one continues."""
    model = _model("vit")
    with recorded(model) as values:
        with pytest.raises(ValueError, match="already"), recorded(model):
            pass
        model(_images())
    assert len(values.blocks) > 0
