"""The simple ViT against vit-pytorch, and its settings."""

from __future__ import annotations

from copy import deepcopy

import pytest
from torch import nn
from vit_pytorch.simple_vit import SimpleViT

from tests.plugins.model_parity import (
    ForeignTokens,
    Tensors,
    assert_parity,
    built,
    built_with,
    parameters_of,
    randomise,
    renamed,
)

WITHOUT = (".query_key_value.bias", ".attention.projection.bias")


def _our_names(tensors: Tensors) -> Tensors:
    names = {
        "to_patch_embedding.": "patch_embedding.tokenizer.",
        "transformer.layers.": "blocks.",
        "transformer.norm.": "norm.",
        "linear_head.": "head.",
        ".0.norm.": ".attention_norm.",
        ".0.to_qkv.": ".attention.query_key_value.",
        ".0.to_out.": ".attention.projection.",
        ".1.net.0.": ".mlp_norm.",
        ".1.net.1.": ".mlp.expand.",
        ".1.net.3.": ".mlp.contract.",
    }
    return renamed(tensors, names)


@pytest.mark.parametrize(
    ("size", "dimensions", "patch_size", "side"),
    [("micro", (96, 4, 3, 192), 4, 32), ("s", (384, 12, 6, 1536), 16, 96)],
)
def test_equals_vit_pytorch(
    size: str, dimensions: tuple[int, int, int, int], patch_size: int, side: int
) -> None:
    """With the weights of vit-pytorch's simple ViT, logits and all gradients come out."""
    embed_dim, depth, num_heads, mlp_dim = dimensions
    theirs = SimpleViT(
        image_size=side,
        patch_size=patch_size,
        num_classes=10,
        dim=embed_dim,
        depth=depth,
        heads=num_heads,
        mlp_dim=mlp_dim,
        dim_head=embed_dim // num_heads,
    )
    for module in theirs.transformer.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # the paper's code; vit-pytorch leaves torch's 1e-5
    randomise(theirs)
    grid = (side // patch_size, side // patch_size)
    tokenizer = deepcopy(theirs.to_patch_embedding)
    ours = built_with("simple_vit", lambda _: ForeignTokens(tokenizer, grid), 10, size=size)
    assert_parity(ours, theirs, _our_names, (2, side), zeroed=WITHOUT)


def test_has_the_published_number_of_parameters() -> None:
    """ViT-S/16 without class token and learned positions has 22 million parameters (table 2)."""
    model = built("simple_vit", 224, 1000, size="s", embedding={"name": "conv", "patch_size": 16})
    positions_and_class = 197 * 384 + 384
    vit = built("vit", 224, 1000, size="s", embedding={"name": "conv", "patch_size": 16})
    assert parameters_of(model) == parameters_of(vit) - positions_and_class == 21_974_632
