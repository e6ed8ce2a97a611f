"""The Vision Transformer against torchvision, timm and transformers, and its choices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.layers import RmsNorm
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification
from vit_pytorch.simple_vit import posemb_sincos_2d

from tests.plugins.model_parity import (
    Tensors,
    assert_parity,
    built,
    parameters_of,
    randomise,
    renamed,
    timm_names,
    with_joined_projections,
    without_weights,
)

TORCHVISION_NAMES = {
    "class_token": "class_token.token_11D",
    "conv_proj.": "patch_embedding.projection.",
    "encoder.pos_embedding": "position_embedding.positions_1ND",
    "encoder.layers.encoder_layer_": "blocks.",
    "encoder.ln.": "norm.",
    "heads.head.": "head.",
    ".ln_1.": ".attention_norm.",
    ".ln_2.": ".mlp_norm.",
    ".self_attention.in_proj_": ".attention.query_key_value.",
    ".self_attention.out_proj.": ".attention.projection.",
    ".mlp.0.": ".mlp.expand.",
    ".mlp.3.": ".mlp.contract.",
}
TRANSFORMERS_NAMES = {
    "embeddings.cls_token": "class_token.token_11D",
    "embeddings.position_embeddings": "position_embedding.positions_1ND",
    "embeddings.patch_embeddings.": "patch_embedding.",
    "vit.layers.": "blocks.",
    "vit.layernorm.": "norm.",
    "vit.": "",
    "classifier.": "head.",
    ".layernorm_before.": ".attention_norm.",
    ".layernorm_after.": ".mlp_norm.",
    ".attention.o_proj.": ".attention.projection.",
    ".mlp.fc1.": ".mlp.expand.",
    ".mlp.fc2.": ".mlp.contract.",
}


def _published(size: str, **settings: Any) -> Any:
    """Return our ViT for 224x224 images in 16x16 patches and 1000 classes."""
    embedding = {"name": "conv", "patch_size": 16}
    return without_weights(
        lambda: built("vit", 224, 1000, size=size, embedding=embedding, **settings)
    )


def _torchvision_names(tensors: Tensors) -> Tensors:
    return renamed(tensors, TORCHVISION_NAMES)


def _transformers_names(tensors: Tensors) -> Tensors:
    return renamed(with_joined_projections(tensors), TRANSFORMERS_NAMES)


class _Logits(nn.Module):
    """Only the logits of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK: torch.Tensor = self.model(images_BCHW).logits
        return logits_BK


@pytest.mark.parametrize("depth", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_base_equals_torchvision(depth: int) -> None:
    """With the weights of torchvision's ViT-B/16, logits and all gradients come out."""
    theirs = without_weights(
        lambda: torchvision.models.VisionTransformer(224, 16, depth, 12, 768, 3072)
    )
    randomise(theirs)
    ours = _published("b", depth=depth)
    assert_parity(ours, theirs, _torchvision_names, (1, 224))


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        ("vit_tiny_patch16_224", "ti"),
        pytest.param("vit_base_patch16_224", "b", marks=pytest.mark.slow),
    ],
)
def test_equals_timm(architecture: str, size: str) -> None:
    """With the weights of timm's models, logits and all gradients come out."""
    theirs = without_weights(lambda: timm.create_model(architecture, pretrained=False))
    randomise(theirs)
    ours = _published(size)
    assert parameters_of(ours) == parameters_of(theirs)
    assert_parity(ours, theirs, timm_names, (2, 224))


@pytest.mark.parametrize("depth", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_equals_transformers(depth: int) -> None:
    """With the weights of transformers' ViT of base width, logits and all gradients come out."""
    config = ViTConfig(num_hidden_layers=depth, num_labels=1000, layer_norm_eps=1e-6)
    theirs = without_weights(lambda: _Logits(ViTForImageClassification(config)))
    randomise(theirs)

    def names(tensors: Tensors) -> Tensors:
        return _transformers_names({n.removeprefix("model."): t for n, t in tensors.items()})

    ours = _published("b", depth=depth)
    assert_parity(ours, theirs, names, (1, 224))


def _timm_small(**settings: Any) -> Any:
    """Return timm's ViT of our size mini, for 32x32 images in 8x8 patches, depth 3."""
    theirs = TimmVisionTransformer(
        img_size=32,
        patch_size=4,
        embed_dim=128,
        depth=3,
        num_heads=4,
        mlp_ratio=2,
        num_classes=5,
        **settings,
    )
    randomise(theirs)
    return theirs


def _small(**settings: Any) -> Any:
    return built("vit", 32, 5, size="mini", depth=3, **settings)


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({}, {}),
        (
            {"pooling": "average"},
            {"class_token": False, "global_pool": "avg", "fc_norm": False},
        ),
        ({"pooling": "attention"}, {"class_token": False, "global_pool": "map"}),
        (
            {"pooling": "attention", "activation": "gelu_tanh"},
            {
                "class_token": False,
                "global_pool": "map",
                "act_layer": partial(nn.GELU, approximate="tanh"),
            },
        ),
        ({"layer_scale": 1e-5}, {"init_values": 1e-5}),
        ({"positions": "none"}, {"pos_embed": "none"}),
        (
            {"norm": "rms_norm", "qk_norm": True},
            {"norm_layer": partial(RmsNorm, eps=1e-6), "qk_norm": True},
        ),
    ],
)
def test_every_choice_equals_timm(own: dict[str, Any], settings: dict[str, Any]) -> None:
    """Pooling, layer scale, norms, no positions: what timm's ViT does with the same choice."""
    ours, theirs = _small(**own), _timm_small(**settings)
    assert_parity(ours, theirs, timm_names, (3, 32))


@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_sine_cosine_positions_equal_fixed_ones_in_timm(pooling: str) -> None:
    """With vit-pytorch's table as timm's positions, logits and all other gradients come out."""
    with_class = pooling == "class_token"
    settings = {} if with_class else {"global_pool": "avg", "fc_norm": False}
    theirs = _timm_small(class_token=with_class, **settings)
    table_ND = posemb_sincos_2d(8, 8, 128)
    if with_class:
        table_ND = torch.cat([torch.zeros(1, 128), table_ND])
    theirs.pos_embed.data = table_ND[None]

    def names(tensors: Tensors) -> Tensors:
        return timm_names({name: t for name, t in tensors.items() if name != "pos_embed"})

    ours = _small(positions="sine_cosine", pooling=pooling)
    assert_parity(ours, theirs, names, (3, 32))


class _TanhOnTop(nn.Module):
    """A ViT whose features pass a hidden tanh layer before the last one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.hidden = nn.Linear(128, 128)
        self.output = nn.Linear(128, 5)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        features_BD = self.model(images_BCHW)
        hidden_BD = torch.tanh(functional.linear(features_BD, self.hidden.weight, self.hidden.bias))
        return functional.linear(hidden_BD, self.output.weight, self.output.bias)


def test_the_tanh_head_equals_its_formula_on_the_features_of_timm() -> None:
    """The head of pre-training is W tanh(V f + v) + w of the class token's features f."""
    features = _timm_small()
    features.head = nn.Identity()
    theirs = _TanhOnTop(features)
    randomise(theirs)

    def names(tensors: Tensors) -> Tensors:
        body = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        head = {f"head.{n}": t for n, t in tensors.items() if not n.startswith("model.")}
        return {**timm_names(body), **head}

    ours = _small(head="tanh")
    assert_parity(ours, theirs, names, (3, 32))


@pytest.mark.parametrize(
    ("size", "architecture"),
    [
        ("ti", "vit_tiny_patch16_224"),
        ("s", "vit_small_patch16_224"),
        ("l", "vit_large_patch16_224"),
    ],
)
def test_has_as_many_parameters_as_timm(size: str, architecture: str) -> None:
    """Ti, S and L with patches of 16 pixels have as many parameters as timm's."""
    theirs = without_weights(lambda: timm.create_model(architecture, pretrained=False))
    assert parameters_of(_published(size)) == parameters_of(theirs)
