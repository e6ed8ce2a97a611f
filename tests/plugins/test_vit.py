"""The Vision Transformer: published counts, its settings, and its contract.

Its function is held against public implementations in `test_vit_parity`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.layers.activations import QuickGELU
from patchline.pipeline.layers.mlp import MLP
from patchline.pipeline.models.model_building import build_model, build_on_meta
from patchline.pipeline.probing.linear_head import linear_head
from patchline.plugin_api import DataTraits, ImageSpec
from patchline.plugins.models.transformer_settings import VIT_SIZES
from patchline.plugins.models.vit import VitConfig

TRAITS = DataTraits(channels=3, height=32, width=32, num_classes=5, mirror_symmetric=True)


def _image(side: int = 16, channels: int = 3) -> ImageSpec:
    return ImageSpec.model_validate(
        {
            "channels": channels,
            "height": side,
            "width": side,
            "mean": (0.5,) * channels,
            "std": (0.25,) * channels,
            "resize": "crop",
        }
    )


def _choice(*, patch_size: int = 4, embedding: str = "conv", **settings: Any) -> ModelChoice:
    patch_embedding = {"name": embedding, "patch_size": patch_size}
    return ModelChoice.model_validate(
        {"name": "vit", "patch_embedding": patch_embedding, **settings}
    )


def _small(seed: int = 0, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(_choice(depth=2, **settings), _image(), num_classes=5).eval()


def _images(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(
    ("size", "patch_size", "parameters"),
    [("b", 16, 86_567_656), ("l", 16, 304_326_632), ("h", 14, 632_045_800)],
)
def test_has_the_published_number_of_parameters(
    size: str, patch_size: int, parameters: int
) -> None:
    """Base, Large and Huge have as many parameters as the published models with 1000 classes."""
    model = build_on_meta(_choice(size=size, patch_size=patch_size), _image(224), 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("size", list(VIT_SIZES))
def test_every_size_builds(size: str) -> None:
    """Every size has its number of blocks and maps images to logits."""
    model: Any = build_on_meta(_choice(size=size, patch_size=16), _image(224), 7)
    assert len(model.blocks) == VIT_SIZES[size].depth
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 7)


def test_a_dimension_beats_the_size() -> None:
    """What is set separately replaces the size's number, and only that."""
    model: Any = build_on_meta(_choice(size="ti", depth=3, mlp_dim=100), _image(), 7)
    assert len(model.blocks) == 3
    assert model.blocks[0].mlp.expand.weight.shape == (100, VIT_SIZES["ti"].embed_dim)


@torch.no_grad()
def test_the_tanh_head_adds_a_hidden_layer() -> None:
    """With head tanh, one hidden layer with tanh stands before the linear one."""
    linear, tanh = _small(), _small(head="tanh")
    features = VIT_SIZES["micro"].embed_dim
    difference = sum(p.numel() for p in tanh.parameters()) - sum(
        p.numel() for p in linear.parameters()
    )
    assert difference == features * features + features
    assert tanh(_images()).shape == (4, 5)
    weights = linear.state_dict()
    weights["head.output.weight"] = weights.pop("head.weight")
    weights["head.output.bias"] = weights.pop("head.bias")
    weights["head.hidden.weight"] = 1e-3 * torch.eye(features)  # where tanh is the identity
    weights["head.hidden.bias"] = torch.zeros(features)
    tanh.load_state_dict(weights)
    torch.testing.assert_close(1e3 * tanh(_images()), linear(_images()), atol=1e-3, rtol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_a_flip_at_test_time_averages_both_views(pooling: str) -> None:
    """Logits are the mean of those of the image and its mirror image; training does not change."""
    plain, flipped = _small(pooling=pooling), _small(pooling=pooling, test_time_flip=True)
    images = _images()
    expected = (plain(images) + plain(images.flip(3))) / 2
    torch.testing.assert_close(flipped(images), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(flipped(images.flip(3)), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(plain(images), expected, atol=1e-3)
    torch.testing.assert_close(flipped.train()(images), plain.train()(images))


def test_a_flipped_model_can_be_probed() -> None:
    """The head reads one vector for each image, whose linear map the answer is."""
    model: Any = _small(test_time_flip=True)
    assert linear_head(model, 5, _image()) is model.head


def test_resolving_fills_in_the_dimensions() -> None:
    """Open dimensions become the size's; set ones stay."""
    resolved = VitConfig(size="ti", depth=3).resolved_for(TRAITS)
    assert resolved.dimensions() == (192, 3, 3, 768)
    assert (resolved.embed_dim, resolved.depth) == (192, 3)
    assert (resolved.num_heads, resolved.mlp_dim) == (3, 768)


def test_resolving_refuses_heads_that_do_not_divide() -> None:
    """Heads that do not divide the embedding are refused with both settings and both numbers."""
    with pytest.raises(ConfigError, match=r"model\.num_heads 5 .* model\.embed_dim 96"):
        VitConfig(size="micro", num_heads=5).resolved_for(TRAITS)


@torch.no_grad()
def test_the_seed_decides_the_weights() -> None:
    """The same seed gives the same output, another seed another one."""
    images = _images()
    assert torch.equal(_small(seed=1)(images), _small(seed=1)(images))
    assert not torch.allclose(_small(seed=1)(images), _small(seed=2)(images))


@torch.no_grad()
def test_an_image_is_classified_alone() -> None:
    """What else is in the batch does not change an image's logits."""
    model, images = _small(), _images()
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone, atol=1e-5, rtol=1e-5)
    assert float(alone.std(dim=0).max()) > 1e-3


@torch.no_grad()
def test_the_place_of_a_patch_matters() -> None:
    """The same patches in other places give other logits."""
    model, images = _small(), _images()
    assert not torch.allclose(model(images), model(images.roll(4, dims=3)), atol=1e-4)


@pytest.mark.parametrize("head", ["linear", "tanh"])
@pytest.mark.parametrize("embedding", ["linear", "conv"])
def test_every_parameter_learns(head: str, embedding: str) -> None:
    """Every parameter gets a gradient that is not zero."""
    model = _small(head=head, embedding=embedding).train()
    loss = functional.cross_entropy(model(_images()), torch.tensor([0, 1, 2, 3]))
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


@torch.no_grad()
def test_weights_survive_a_round_trip_through_a_file(tmp_path: Path) -> None:
    """Saved weights, loaded into another model, give the same logits bit for bit."""
    model, other = _small(seed=1), _small(seed=2)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(other(_images()), model(_images()))


def test_stochastic_depth_rises_from_zero() -> None:
    """The first block is never skipped, the last one with the probability that was set."""
    model: Any = build_on_meta(_choice(depth=5, stochastic_depth=0.4), _image(), 5)
    rates = [block.stochastic_depth.drop_probability for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("name", ["vit", "vit_registers", "rope_vit"])
def test_every_norm_has_the_epsilon(name: str) -> None:
    """The setting reaches the norms of the blocks, of the embedding and before the head."""
    further: dict[str, object] = {} if name == "rope_vit" else {"embedding_norm": True}
    further |= {"pooling": "attention"} if name == "vit" else {}
    choice = {"name": name, "depth": 2, "norm_epsilon": 1e-3, **further}
    model = build_on_meta(ModelChoice.model_validate(choice), _image(32), 5)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 1 + len(further)
    assert {norm.eps for norm in norms} == {1e-3}


@pytest.mark.parametrize("name", ["vit", "vit_registers", "rope_vit"])
def test_every_mlp_has_the_activation(name: str) -> None:
    """The setting reaches the MLP of every block."""
    choice = {"name": name, "depth": 2, "activation": "quick_gelu"}
    model = build_on_meta(ModelChoice.model_validate(choice), _image(32), 5)
    found = [m.activation for m in model.modules() if isinstance(m, MLP)]
    assert [type(activation) for activation in found] == [QuickGELU, QuickGELU]


def test_defaults_keep_the_parameters_of_earlier_checkpoints() -> None:
    """Without an embedding norm, there is no parameter for it."""
    for name in ("vit", "vit_registers"):
        choice = ModelChoice.model_validate({"name": name, "depth": 1})
        assert not any(
            "embedding_norm" in each for each in build_on_meta(choice, _image(32), 5).state_dict()
        )
