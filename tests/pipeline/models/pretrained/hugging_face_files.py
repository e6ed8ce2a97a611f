"""Weight files in the layouts of Hugging Face's transformers, written by transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.pipeline.models.pretrained.tiny_models import (
    CLASSES,
    DEPTH,
    DIM,
    HEADS,
    IMAGE,
    MLP,
    PATCH,
    Published,
    pickled,
)
from tests.plugins.model_parity import randomise

_HUGGING_FACE = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": MLP,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
_DINO = {n: v for n, v in _HUGGING_FACE.items() if n != "intermediate_size"} | {"mlp_ratio": 2}


def hugging_face(
    folder: Path,
    title: str,
    model: Any,
    answer: Callable[[Any, torch.Tensor], torch.Tensor],
    *,
    has_head: bool = False,
    current_names: bool = False,
) -> Published:
    """Write a random model of transformers with its config, in the names of its hub or its own."""
    randomise(model)
    model.eval().save_pretrained(folder)
    file = folder / "model.safetensors"
    if current_names:
        file = pickled(folder, model.state_dict(), ".bin")
    return Published(file, partial(answer, model), title, has_head)


def _logits(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
    logits_BK: torch.Tensor = model(images_BCHW).logits
    return logits_BK


def _class_token(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
    tokens_BND: torch.Tensor = model.base_model(images_BCHW).last_hidden_state
    return tokens_BND[:, 0]


def _all_patches(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the class token of MAE's encoder, which here sees every patch in order."""
    noise_BN = torch.arange((IMAGE // PATCH) ** 2).expand(len(images_BCHW), -1)
    tokens_BND: torch.Tensor = model.vit(images_BCHW, noise=noise_BN).last_hidden_state
    return tokens_BND[:, 0]


def _pooled(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
    features_BD: torch.Tensor = getattr(model, "vision_model", model)(images_BCHW).pooler_output
    return features_BD


def _vit(folder: Path, *, current_names: bool = False) -> Published:
    config = transformers.ViTConfig(**_HUGGING_FACE, num_labels=CLASSES)
    model = transformers.ViTForImageClassification(config)
    title = "transformers ViT"
    return hugging_face(folder, title, model, _logits, has_head=True, current_names=current_names)


def _vit_body(folder: Path, *, current_names: bool = False) -> Published:
    model = transformers.ViTModel(transformers.ViTConfig(**_HUGGING_FACE, qkv_bias=False))
    title = "transformers ViT"
    return hugging_face(folder, title, model, _class_token, current_names=current_names)


def _deit_hf(folder: Path) -> Published:
    config = transformers.DeiTConfig(**_HUGGING_FACE, num_labels=CLASSES, hidden_act="gelu_new")
    model = transformers.DeiTForImageClassification(config)
    return hugging_face(folder, "transformers DeiT", model, _logits, has_head=True)


def _deit_with_teacher(folder: Path) -> Published:
    config = transformers.DeiTConfig(**_HUGGING_FACE, num_labels=CLASSES)
    model = transformers.DeiTForImageClassificationWithTeacher(config)

    def answer(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK: torch.Tensor = model(images_BCHW).cls_logits
        return logits_BK

    return hugging_face(folder, "transformers DeiT", model, answer, has_head=True)


def _dinov2_hf(folder: Path) -> Published:
    config = transformers.Dinov2Config(**_DINO, num_labels=CLASSES)
    model = transformers.Dinov2ForImageClassification(config)
    return hugging_face(folder, "transformers DINOv2", model, _class_token)


def _dinov2_registers(folder: Path, *, current_names: bool = False) -> Published:
    config = transformers.Dinov2WithRegistersConfig(**_DINO, num_register_tokens=3)
    model = transformers.Dinov2WithRegistersModel(config)
    title = "transformers DINOv2 with registers"
    return hugging_face(folder, title, model, _class_token, current_names=current_names)


def _mae_hf(folder: Path) -> Published:
    decoder = {
        "decoder_hidden_size": 32,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32,
    }
    config = transformers.ViTMAEConfig(**_HUGGING_FACE, **decoder, mask_ratio=0.0)
    model = transformers.ViTMAEForPreTraining(config)
    return hugging_face(folder, "transformers MAE", model, _all_patches)


def _clip_tower(folder: Path, kind: str, **settings: Any) -> Published:
    config = transformers.CLIPVisionConfig(**_HUGGING_FACE, projection_dim=16, **settings)
    model = getattr(transformers, kind)(config)
    return hugging_face(folder, "transformers CLIP image tower", model, _pooled)


def _clip_both(folder: Path) -> Published:
    texts = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 99,
        "max_position_embeddings": 8,
    }
    config = transformers.CLIPConfig(text_config=texts, vision_config=_HUGGING_FACE)
    title = "transformers CLIP image tower"
    return hugging_face(folder, title, transformers.CLIPModel(config), _pooled)


HUGGING_FACE: dict[str, Callable[[Path], Published]] = {
    "transformers ViT": _vit,
    "transformers ViT, current names": partial(_vit, current_names=True),
    "transformers ViTModel": _vit_body,
    "transformers ViTModel, current names": partial(_vit_body, current_names=True),
    "transformers DeiT": _deit_hf,
    "transformers DeiT with teacher": _deit_with_teacher,
    "transformers DINOv2": _dinov2_hf,
    "transformers DINOv2 with registers": _dinov2_registers,
    "transformers DINOv2 with registers, current names": partial(
        _dinov2_registers, current_names=True
    ),
    "transformers MAE": _mae_hf,
    "transformers CLIP tower": partial(_clip_tower, kind="CLIPVisionModel"),
    "transformers CLIP tower, gelu": partial(
        _clip_tower, kind="CLIPVisionModel", hidden_act="gelu"
    ),
    "transformers CLIP, projection": partial(_clip_tower, kind="CLIPVisionModelWithProjection"),
    "transformers CLIP, both towers": _clip_both,
}
"""Writes a file of each layout into a folder."""
