"""The Compact Convolutional Transformer against vit-pytorch and the published counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vit_pytorch import cct as vit_pytorch_cct

from patchline.pipeline.config_files import validated
from tests.plugins.model_parity import (
    Tensors,
    assert_parity,
    built,
    parameters_of,
    random_images,
    randomise,
    renamed,
)


def _our_names(tensors: Tensors) -> Tensors:
    """Rename; each of our tokenizer's layers is three modules in one sequence."""
    names = {
        f"tokenizer.conv_layers.{layer}.0.": f"patch_embedding.projection.{3 * layer}."
        for layer in range(4)
    }
    names |= {
        "classifier.positional_emb": "position_embedding.positions_1ND",
        "classifier.attention_pool.": "pooling.importance.",
        "classifier.fc.": "head.",
        "classifier.": "",
        ".pre_norm.": ".attention_norm.",
        ".self_attn.qkv.": ".attention.query_key_value.",
        ".self_attn.proj.": ".attention.projection.",
        ".norm1.": ".stream_norm.",
        ".linear1.": ".mlp.expand.",
        ".linear2.": ".mlp.contract.",
    }
    return renamed(tensors, names)


def _embedding(num_layers: int, kernel_size: int) -> dict[str, Any]:
    return {"name": "cct", "num_layers": num_layers, "kernel_size": kernel_size}


@pytest.mark.parametrize(
    ("size", "num_layers", "kernel_size", "side", "positions"),
    [
        ("2", 2, 3, 32, "learned"),
        ("2", 2, 3, 32, "none"),
        ("4", 2, 3, 32, "learned"),
        ("7", 1, 3, 32, "learned"),
        ("14", 2, 7, 96, "learned"),
    ],
)
def test_equals_vit_pytorch(
    size: str, num_layers: int, kernel_size: int, side: int, positions: str
) -> None:
    """With the weights of vit-pytorch's CCT, logits and all gradients come out."""
    theirs = getattr(vit_pytorch_cct, f"cct_{size}")(
        img_size=side,
        n_conv_layers=num_layers,
        kernel_size=kernel_size,
        num_classes=10,
        positional_embedding="learnable" if positions == "learned" else "none",
    )
    randomise(theirs)
    embedding = _embedding(num_layers, kernel_size)
    ours = built("cct", side, 10, size=size, positions=positions, embedding=embedding)
    assert_parity(ours, theirs, _our_names, (2, side))


@pytest.mark.parametrize(
    ("size", "num_layers", "kernel_size", "millions"),
    [
        ("2", 2, 3, 0.28),
        ("4", 2, 3, 0.48),
        ("7", 1, 3, 3.76),
    ],
)
def test_has_the_published_number_of_parameters(
    size: str, num_layers: int, kernel_size: int, millions: float
) -> None:
    """CCT-2/3x2, 4/3x2 and 7/3x1 on 32x32 images are as large as in table 1."""
    model = built("cct", 32, 10, size=size, embedding=_embedding(num_layers, kernel_size))
    assert parameters_of(model) / 1e6 == pytest.approx(millions, abs=0.0051)


def test_is_fed_by_its_own_tokenizer() -> None:
    """Without another choice the patch embedding is the convolutional tokenizer."""
    assert validated({"model": {"name": "cct"}}).model.patch_embedding.name == "cct"


def test_learned_positions_start_wider_than_elsewhere() -> None:
    """Learned positions start with the published standard deviation of 0.2."""
    positions_1ND = built("cct", positions="learned").position_embedding.positions_1ND
    assert float(positions_1ND.detach().std()) == pytest.approx(0.2, rel=0.1)


@torch.no_grad()
def test_sine_cosine_positions_tell_places_apart() -> None:
    """With fixed positions nothing is learned about places, and they count."""
    model, plain = built("cct", positions="sine_cosine"), built("cct", positions="none")
    assert parameters_of(model) == parameters_of(plain)
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(model(random_images(2, 32)), plain(random_images(2, 32)), atol=1e-3)


def test_regularises_by_default_as_published() -> None:
    """Attention dropout and stochastic depth are 0.1 unless set, and act in training."""
    model = built("cct", depth=3).train()
    assert [block.attention.dropout for block in model.blocks] == [0.1] * 3
    rates = [block.stochastic_depth.drop_probability for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.05, 0.1])
    images = random_images(4, 32)
    assert not torch.allclose(model(images), model(images), atol=1e-5)
    model.eval()
    assert torch.equal(model(images), model(images))
