"""The ViT with registers against transformers and timm, and what registers add."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from patchline.plugins.models.vit_registers import VitRegistersConfig
from tests.plugins.model_parity import (
    Tensors,
    assert_parity,
    built,
    parameters_of,
    random_images,
    randomise,
    renamed,
    timm_names,
    values_of,
    with_joined_projections,
)


def _small(**settings: Any) -> Any:
    return built("vit_registers", 32, 5, size="mini", depth=3, **settings)


class _ClassTokenHead(nn.Module):
    """A linear head on the class token of DINOv2 with registers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(128, 5)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        tokens_BND = self.model(images_BCHW).last_hidden_state
        logits_BK: torch.Tensor = self.head(tokens_BND[:, 0])
        return logits_BK


def _transformers_names(tensors: Tensors) -> Tensors:
    """Leave out the mask token, which nothing uses, and rename."""
    used = {n.removeprefix("model."): t for n, t in tensors.items() if "mask_token" not in n}
    names = {
        "embeddings.cls_token": "class_token.token_11D",
        "embeddings.position_embeddings": "position_embedding.positions_1ND",
        "embeddings.register_tokens": "registers.registers_1RD",
        "embeddings.patch_embeddings.": "patch_embedding.",
        "encoder.layer.": "blocks.",
        "layernorm.": "norm.",
        ".norm1.": ".attention_norm.",
        ".norm2.": ".mlp_norm.",
        ".attention.o_proj.": ".attention.projection.",
        ".mlp.fc1.": ".mlp.expand.",
        ".mlp.fc2.": ".mlp.contract.",
        ".layer_scale1.lambda1": ".attention_scale.gain_D",
        ".layer_scale2.lambda1": ".mlp_scale.gain_D",
    }
    return renamed(with_joined_projections(used), names)


def test_equals_transformers() -> None:
    """With the weights of transformers' DINOv2 with registers, logits and gradients come out."""
    config = Dinov2WithRegistersConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        mlp_ratio=2,
        image_size=32,
        patch_size=4,
        num_register_tokens=4,
    )
    theirs = _ClassTokenHead(Dinov2WithRegistersModel(config))
    randomise(theirs)
    ours = _small(layer_scale=1.0)
    assert_parity(ours, theirs, _transformers_names, (3, 32))


def test_equals_timm() -> None:
    """With timm's registers and their positions added up, logits and gradients come out."""
    theirs: Any = TimmVisionTransformer(
        img_size=32,
        patch_size=4,
        embed_dim=128,
        depth=3,
        num_heads=4,
        mlp_ratio=2,
        num_classes=5,
        reg_tokens=3,
    )
    randomise(theirs)

    def names(tensors: Tensors) -> Tensors:
        """Leave out the positions of the registers, which ours do not have."""
        ours = timm_names(tensors)
        ours["registers.registers_1RD"] = ours.pop("reg_token")
        positions_1ND = ours["position_embedding.positions_1ND"]
        kept = torch.cat([positions_1ND[:, :1], positions_1ND[:, 4:]], dim=1)
        return {**ours, "position_embedding.positions_1ND": kept}

    weights = names(values_of(theirs))
    weights["registers.registers_1RD"] = (theirs.reg_token + theirs.pos_embed[:, 1:4]).detach()
    ours = _small(num_registers=3)
    assert_parity(ours, theirs, names, (3, 32), weights=weights)


@pytest.mark.parametrize("num_registers", [1, 4, 16])
def test_registers_add_their_vectors_alone(num_registers: int) -> None:
    """R registers add R times D parameters to the ViT of the same size, and nothing else."""
    plain = built("vit", size="mini", depth=2)
    model = built("vit_registers", size="mini", depth=2, num_registers=num_registers)
    assert parameters_of(model) - parameters_of(plain) == num_registers * 128


def test_the_head_reads_the_class_token_alone() -> None:
    """Registers change the logits through the attention of the blocks, and only so."""
    model, images = _small(), random_images(2, 32)
    before = model(images)
    with torch.no_grad():
        model.registers.registers_1RD.copy_(torch.randn(1, 4, 128))
    assert not torch.allclose(model(images), before, atol=1e-4)
    for block in model.blocks:
        nn.init.zeros_(block.attention.projection.weight)
    without_attention = model(images)
    with torch.no_grad():
        model.registers.registers_1RD.copy_(torch.randn(1, 4, 128))
    assert torch.equal(model(images), without_attention)


def test_patch_dropout_keeps_the_class_token_and_the_registers() -> None:
    """In training half of the patches go, and none of the tokens in front."""
    model = _small(patch_dropout=0.5, num_registers=3).train()
    lengths: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    model(random_images(2, 32))
    model.eval()(random_images(2, 32))
    assert lengths == [1 + 3 + 32, 1 + 3 + 64]


@pytest.mark.parametrize("num_registers", [0, 65])
def test_refuses_no_or_too_many_registers(num_registers: int) -> None:
    """Without registers it would be the model vit."""
    with pytest.raises(ValidationError, match="num_registers"):
        VitRegistersConfig(num_registers=num_registers)
