"""The Vision Transformer: published counts, its settings, and its contract.

Its function is held against public implementations in `test_vit_parity`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.layers.activations import QuickGELU
from patchline.pipeline.layers.mlp import MLP
from patchline.pipeline.models.model_building import build_model, build_on_meta
from patchline.pipeline.plugin_system.plugin_loader import load_model
from patchline.pipeline.probing.linear_head import linear_head
from patchline.plugins.models.transformer_settings import VIT_SIZES
from patchline.plugins.models.vit import VitConfig
from tests.plugins.model_parity import image_spec, parameters_of, random_images, traits


def _choice(*, patch_size: int = 4, embedding: str = "conv", **settings: Any) -> ModelChoice:
    patch_embedding = {"name": embedding, "patch_size": patch_size}
    return ModelChoice.model_validate(
        {"name": "vit", "patch_embedding": patch_embedding, **settings}
    )


def _small(seed: int = 0, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(_choice(depth=2, **settings), image_spec(16), num_classes=5).eval()


@pytest.mark.parametrize("size", list(VIT_SIZES))
def test_every_size_builds(size: str) -> None:
    """Every size has its number of blocks and maps images to logits."""
    model: Any = build_on_meta(_choice(size=size, patch_size=16), image_spec(224), 7)
    assert len(model.blocks) == VIT_SIZES[size].depth
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("size", "patch_size", "parameters"),
    [("b", 16, 86_567_656), ("l", 16, 304_326_632), ("h", 14, 632_045_800)],
)
def test_base_large_and_huge_have_their_published_sizes(
    size: str, patch_size: int, parameters: int
) -> None:
    """86, 307 and 632 million, as torchvision states exactly (arXiv 2010.11929, table 1)."""
    model = build_on_meta(_choice(size=size, patch_size=patch_size), image_spec(224), 1000)
    assert parameters_of(model) == parameters


def test_a_dimension_beats_the_size() -> None:
    """What is set separately replaces the size's number, and only that."""
    model: Any = build_on_meta(_choice(size="ti", depth=3, mlp_dim=100), image_spec(16), 7)
    assert len(model.blocks) == 3
    assert model.blocks[0].mlp.expand.weight.shape == (100, VIT_SIZES["ti"].embed_dim)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_a_flip_at_test_time_averages_both_views(pooling: str) -> None:
    """Logits are the mean of those of the image and its mirror image; training does not change."""
    plain, flipped = _small(pooling=pooling), _small(pooling=pooling, test_time_flip=True)
    images = random_images(4, 16)
    expected = (plain(images) + plain(images.flip(3))) / 2
    torch.testing.assert_close(flipped(images), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(flipped(images.flip(3)), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain(images), expected, atol=1e-3)
    torch.testing.assert_close(flipped.train()(images), plain.train()(images))


def test_a_flipped_model_can_be_probed() -> None:
    """The head reads one vector for each image, whose linear map the answer is."""
    model: Any = _small(test_time_flip=True)
    assert linear_head(model, 5, image_spec(16)) is model.head


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("vit", {"num_heads": 5}, r"model\.num_heads 5 .* model\.embed_dim 96"),
        ("rope_vit", {"num_heads": 5}, r"model\.num_heads 5 does not divide model\.embed_dim"),
        ("simple_vit", {"num_heads": 5}, r"model\.num_heads 5 .* model\.embed_dim 96"),
        ("vit_small_data", {"num_heads": 5}, r"model\.num_heads 5 does not divide model\.embed"),
        (
            "simple_vit",
            {"embed_dim": 98, "num_heads": 2},
            r"model\.embed_dim 98 is not a multiple of 4, [^;]*Choose 100\.$",
        ),
        (
            "cct",
            {"embed_dim": 130, "positions": "sine_cosine"},
            r"model\.embed_dim 130 is not a multiple of 4, .* Choose 132\.",
        ),
    ],
)
def test_dimensions_that_do_not_fit_are_refused(
    name: str, settings: dict[str, Any], words: str
) -> None:
    """Settings that do not divide are refused with both settings, both numbers and a remedy."""
    with pytest.raises(ConfigError, match=words):
        load_model(name).config_class(**settings).resolved_for(traits())


def test_resolving_fills_in_the_dimensions() -> None:
    """Open dimensions become the size's; set ones stay."""
    resolved = VitConfig(size="ti", depth=3).resolved_for(traits())
    assert resolved.dimensions() == (192, 3, 3, 768)
    assert (resolved.embed_dim, resolved.depth) == (192, 3)
    assert (resolved.num_heads, resolved.mlp_dim) == (3, 768)


def test_stochastic_depth_rises_from_zero() -> None:
    """The first block is never skipped, the last one with the probability that was set."""
    model: Any = build_on_meta(_choice(depth=5, stochastic_depth=0.4), image_spec(16), 5)
    rates = [block.stochastic_depth.drop_probability for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("name", ["vit", "vit_registers", "rope_vit"])
def test_every_norm_has_the_epsilon(name: str) -> None:
    """The setting reaches the norms of the blocks, of the embedding and before the head."""
    further: dict[str, object] = {} if name == "rope_vit" else {"embedding_norm": True}
    further |= {"pooling": "attention"} if name == "vit" else {}
    choice = {"name": name, "depth": 2, "norm_epsilon": 1e-3, **further}
    model = build_on_meta(ModelChoice.model_validate(choice), image_spec(32), 5)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 1 + len(further)
    assert {norm.eps for norm in norms} == {1e-3}


@pytest.mark.parametrize("name", ["vit", "vit_registers", "rope_vit"])
def test_every_mlp_has_the_activation(name: str) -> None:
    """The setting reaches the MLP of every block."""
    choice = {"name": name, "depth": 2, "activation": "quick_gelu"}
    model = build_on_meta(ModelChoice.model_validate(choice), image_spec(32), 5)
    found = [m.activation for m in model.modules() if isinstance(m, MLP)]
    assert [type(activation) for activation in found] == [QuickGELU, QuickGELU]
