"""The ViT for small data sets against vit-pytorch, and its settings."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from vit_pytorch.vit_for_small_dataset import ViT as VitPytorchSmallData

from patchline.pipeline.config_files import validated
from tests.plugins.model_parity import (
    ForeignTokens,
    Tensors,
    assert_parity,
    built,
    built_with,
    parameters_of,
    random_images,
    randomise,
    renamed,
    values_of,
)


def _our_names(tensors: Tensors) -> Tensors:
    names = {
        "to_patch_embedding.": "patch_embedding.tokenizer.",
        "pos_embedding": "position_embedding.positions_1ND",
        "cls_token": "class_token.token_11D",
        "transformer.layers.": "blocks.",
        "mlp_head.0.": "norm.",
        "mlp_head.1.": "head.",
        ".0.norm.": ".attention_norm.",
        ".0.temperature": ".attention.log_sharpness",
        ".0.to_qkv.": ".attention.query_key_value.",
        ".0.to_out.0.": ".attention.projection.",
        ".1.net.0.": ".mlp_norm.",
        ".1.net.1.": ".mlp.expand.",
        ".1.net.4.": ".mlp.contract.",
    }
    return renamed(tensors, names)


@pytest.mark.parametrize("size", ["micro", "paper"])
def test_equals_vit_pytorch(size: str) -> None:
    """With the weights of vit-pytorch's ViT for small data, logits and all gradients come out."""
    dimensions = {"micro": (96, 4, 3, 192), "paper": (192, 9, 12, 384)}[size]
    embed_dim, depth, num_heads, mlp_dim = dimensions
    head_dim = embed_dim // num_heads
    theirs = VitPytorchSmallData(
        image_size=32,
        patch_size=4,
        num_classes=10,
        dim=embed_dim,
        depth=depth,
        heads=num_heads,
        mlp_dim=mlp_dim,
        dim_head=head_dim,
    )
    for module in (*theirs.transformer.modules(), theirs.mlp_head[0]):
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # vit-pytorch leaves torch's 1e-5
    randomise(theirs)
    tokenizer = deepcopy(theirs.to_patch_embedding)
    ours = built_with("vit_small_data", lambda _: ForeignTokens(tokenizer, (8, 8)), 10, size=size)
    weights = _our_names(values_of(theirs))
    for name in weights:
        if name.endswith("log_sharpness"):  # theirs holds the whole factor, ours what is learned
            weights[name] = weights[name] + math.log(math.sqrt(head_dim))
    assert_parity(ours, theirs, _our_names, (2, 32), weights=weights)


def test_is_fed_by_shifted_patches() -> None:
    """Without another choice the patch embedding is the one of the same paper."""
    assert validated({"model": {"name": "vit_small_data"}}).model.patch_embedding.name == "shifted"


def test_the_size_of_the_paper() -> None:
    """The size paper on 64x64 images in 8x8 patches has the published 2.8 million parameters."""
    model = built("vit_small_data", 64, 200, size="paper", embedding={"name": "conv"})
    embed_dim, depth, mlp_dim = 192, 9, 384
    attention = 4 * embed_dim**2 + embed_dim + 1
    mlp = 2 * embed_dim * mlp_dim + embed_dim + mlp_dim
    blocks = depth * (attention + mlp + 4 * embed_dim)
    outside = 66 * embed_dim + (8 * 8 * 3 + 1) * embed_dim + 2 * embed_dim + 200 * (embed_dim + 1)
    assert parameters_of(model) == blocks + outside
    assert parameters_of(model) / 1e6 == pytest.approx(2.8, abs=0.1)


@pytest.mark.parametrize("patch_dropout", [0.0, 0.99])
def test_every_parameter_learns(patch_dropout: float) -> None:
    """Every parameter gets a finite gradient, though no token looks at itself."""
    model = built("vit_small_data", patch_dropout=patch_dropout, depth=2).train()
    model(random_images(4, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
        if patch_dropout == 0.0:
            assert float(parameter.grad.abs().max()) > 0, name
