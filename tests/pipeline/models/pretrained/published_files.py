"""Weight files in every layout, written by the libraries themselves, with what they compute."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from timm.layers import GELU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    _convert_dinov2,
    _convert_openai_clip,
    _load_weights,
)
from torch import nn

from tests.pipeline.models.pretrained.tiny_models import (
    CLASSES,
    DEPTH,
    DIM,
    HEADS,
    IMAGE,
    MLP,
    PATCH,
    Published,
    Tensors,
    pickled,
    saved,
    state_of,
    timm_vit,
)
from tests.plugins.model_parity import randomise

_EPSILON_CLIP = partial(nn.LayerNorm, eps=1e-5)


class QuickGELU(nn.Module):
    """CLIP's activation, which timm's builder takes by class."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.sigmoid(1.702 * hidden)


def _torchvision(folder: Path, **settings: Any) -> Published:
    model: Any = torchvision.models.VisionTransformer(
        image_size=IMAGE,
        patch_size=PATCH,
        num_layers=DEPTH,
        num_heads=HEADS,
        hidden_dim=DIM,
        mlp_dim=MLP,
        num_classes=CLASSES,
        **settings,
    )
    randomise(model)
    return Published(pickled(folder, model.state_dict()), model.eval(), "torchvision ViT")


def _torchvision_old(folder: Path) -> Published:
    published = _torchvision(folder)
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
        for name, tensor in torch.load(published.file).items()
    }
    return published._replace(file=saved(folder, old))


def _timm(
    folder: Path,
    title: str = "timm ViT",
    wrap: Callable[[Tensors], object] | None = None,
    **settings: Any,
) -> Published:
    """Write timm's names, or what a project makes of them."""
    model = timm_vit(**settings)
    tensors = state_of(model)
    file = saved(folder, tensors) if wrap is None else pickled(folder, wrap(tensors))
    return Published(file, model, title, settings.get("num_classes") != 0)


def _deit(tensors: Tensors) -> object:
    """Return DeiT's repository's checkpoint: wrapped, with the command line beside the weights."""
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return {"model": wrapped, "args": argparse.Namespace(lr=0.1), "epoch": 3}


def _deit_3(tensors: Tensors) -> object:
    """Return DeiT III's names: gains called gamma."""
    return {"model": {re.sub(r"ls(.)\.gamma", r"gamma_\1", n): t for n, t in tensors.items()}}


def _dino(tensors: Tensors) -> object:
    """Return DINO's checkpoint: a teacher with its projection head, a student, an optimizer."""
    teacher = {f"backbone.{name}": tensor for name, tensor in tensors.items()}
    teacher |= {"head.mlp.0.weight": torch.ones(4, DIM), "head.last_layer.weight_g": torch.ones(9)}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}
    return {"teacher": teacher, "student": dict(teacher), "optimizer": optimizer, "epoch": 1}


def _mae(tensors: Tensors) -> object:
    decoder = {"mask_token": torch.randn(1, 1, 8), "decoder_pred.weight": torch.randn(12, 8)}
    return {"model": tensors | decoder | {"decoder_blocks.0.norm1.weight": torch.randn(8)}}


def _deit_distilled(folder: Path) -> Published:
    model = timm_vit(kind=VisionTransformerDistilled)

    def answer(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK: torch.Tensor = model.head(model.forward_features(images_BCHW)[:, 0])
        return logits_BK

    return Published(saved(folder, state_of(model)), answer, "distilled DeiT")


def _dinov2(folder: Path, registers: int = 0, *, chunked: bool = False) -> Published:
    """Write DINOv2's own names; timm's own conversion of them computes the answer."""
    settings = {"reg_tokens": registers, "no_embed_class": True} if registers else {}
    model = timm_vit(num_classes=0, init_values=1e-5, **settings)
    tensors = state_of(model)
    if registers:
        tensors["register_tokens"] = tensors.pop("reg_token")
        tensors["pos_embed"] = torch.cat([torch.randn(1, 1, DIM), tensors["pos_embed"]], dim=1)
    tensors["mask_token"] = torch.randn(1, DIM)
    model.load_state_dict(_convert_dinov2(dict(tensors), model))
    if chunked:
        tensors = {name.replace("blocks.", "blocks.0."): each for name, each in tensors.items()}
    title = "DINOv2 with registers" if registers else "DINOv2"
    return Published(pickled(folder, tensors), model, title, has_head=False)


_OPENAI = {
    "patch_embed.proj": "conv1",
    "pos_embed": "positional_embedding",
    "cls_token": "class_embedding",
    "norm_pre": "ln_pre",
    "blocks.": "transformer.resblocks.",
    ".norm1.": ".ln_1.",
    ".norm2.": ".ln_2.",
    "attn.qkv.": "attn.in_proj_",
    "attn.proj.": "attn.out_proj.",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def _openai(folder: Path, prefix: str) -> Published:
    """Write OpenAI's names; timm's own conversion of them computes the answer."""
    model = timm_vit(pre_norm=True, norm_layer=_EPSILON_CLIP, act_layer=QuickGELU, num_classes=0)
    tensors: Tensors = {prefix + "proj": torch.randn(DIM, 16)}
    for name, tensor in state_of(model).items():
        theirs = name.replace("norm.", "ln_post.") if name.startswith("norm.") else name
        for ours, openai in _OPENAI.items():
            theirs = theirs.replace(ours, openai)
        flat = tensor.squeeze() if "embedding" in theirs else tensor
        tensors[prefix + theirs] = flat
    loaded = _convert_openai_clip(
        {n: t for n, t in tensors.items() if not n.endswith("proj")}, model, prefix
    )
    model.load_state_dict(loaded)
    if prefix:
        tensors |= {
            "positional_embedding": torch.randn(8, 16),
            "text_projection": torch.randn(16, 16),
            "logit_scale": torch.tensor(1.0),
            "token_embedding.weight": torch.randn(9, 16),
            "transformer.resblocks.0.ln_1.weight": torch.randn(16),
            "ln_final.bias": torch.randn(16),
            "input_resolution": torch.tensor(32),
        }
    file = pickled(folder, tensors, ".pt")
    return Published(file, model, "OpenAI CLIP image tower", has_head=False)


def jax_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return timm's tensors under the names, and in the order, of the original JAX files."""
    arrays: dict[str, Any] = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        arrays[name] = np.ascontiguousarray(tensor.numpy())

    def linear(name: str, layer: str) -> None:
        put(f"{name}/kernel", tensors[f"{layer}.weight"].T)
        put(f"{name}/bias", tensors[f"{layer}.bias"])

    def norm(name: str, layer: str) -> None:
        put(f"{name}/scale", tensors[f"{layer}.weight"])
        put(f"{name}/bias", tensors[f"{layer}.bias"])

    put("cls", tensors["cls_token"])
    put("embedding/kernel", tensors["patch_embed.proj.weight"].permute(2, 3, 1, 0))
    put("embedding/bias", tensors["patch_embed.proj.bias"])
    put("Transformer/posembed_input/pos_embedding", tensors["pos_embed"])
    norm("Transformer/encoder_norm", "norm")
    linear("head", "head")
    for index in range(DEPTH):
        block, theirs = f"Transformer/encoderblock_{index}", f"blocks.{index}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        weights = tensors[f"{theirs}.attn.qkv.weight"].chunk(3)
        biases = tensors[f"{theirs}.attn.qkv.bias"].chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            put(f"{attention}/{name}/kernel", weight.T.reshape(DIM, HEADS, -1))
            put(f"{attention}/{name}/bias", bias.reshape(HEADS, -1))
        out = tensors[f"{theirs}.attn.proj.weight"].T
        put(f"{attention}/out/kernel", out.reshape(HEADS, -1, DIM))
        put(f"{attention}/out/bias", tensors[f"{theirs}.attn.proj.bias"])
        norm(f"{block}/LayerNorm_0", f"{theirs}.norm1")
        norm(f"{block}/LayerNorm_2", f"{theirs}.norm2")
        linear(f"{block}/MlpBlock_3/Dense_0", f"{theirs}.mlp.fc1")
        linear(f"{block}/MlpBlock_3/Dense_1", f"{theirs}.mlp.fc2")
    return arrays


_BIG_VISION = {
    "Transformer/posembed_input/pos_embedding": "pos_embedding",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
}
"""What the successor of the original code calls a part."""


def _jax(folder: Path, prefix: str = "", names: Mapping[str, str] | None = None) -> Published:
    """Write a JAX file; timm's own loader of such files computes the answer."""
    arrays = {}
    for name, array in jax_arrays(state_of(timm_vit())).items():
        for original, successor in (names or {}).items():
            name = name.replace(original, successor)  # noqa: PLW2901 - step by step
        arrays[prefix + name] = array
    file = folder / "weights.npz"
    np.savez(file, **arrays)
    loaded = timm_vit()
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
        _load_weights(loaded, str(file))
    return Published(file, loaded, "JAX ViT")


def _jax_hidden(folder: Path) -> Published:
    """Add a hidden tanh layer to the head of a JAX file."""
    file, loaded, title, _ = _jax(folder)
    model: Any = loaded
    weight, bias = torch.randn(DIM, DIM) / DIM**0.5, torch.randn(DIM)
    extra = {"pre_logits/kernel": weight.numpy(), "pre_logits/bias": bias.numpy()}
    np.savez(file, **np.load(file), **extra)

    def answer(images_BCHW: torch.Tensor) -> torch.Tensor:
        features_BD = model.forward_features(images_BCHW)[:, 0]
        logits_BK: torch.Tensor = model.head(torch.tanh(features_BD @ weight + bias))
        return logits_BK

    return Published(file, answer, title)


_HF: dict[str, Any] = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": MLP,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
_DINO: dict[str, Any] = {name: value for name, value in _HF.items() if name != "intermediate_size"}
_DECODER: dict[str, Any] = {f"decoder_{name}": 32 for name in ("hidden_size", "intermediate_size")}
_DECODER |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}


def _transformers(
    folder: Path,
    title: str,
    kind: str,
    answer: Callable[[Any, torch.Tensor], torch.Tensor],
    *,
    current_names: bool = False,
    **settings: Any,
) -> Published:
    """Write a random model of transformers with its config, in the names of its hub or its own."""
    kind_of: Any = getattr(transformers, kind)
    model = kind_of(kind_of.config_class(**settings))
    randomise(model)
    model.eval().save_pretrained(folder)
    file = folder / "model.safetensors"
    if current_names:
        file = pickled(folder, model.state_dict(), ".bin")
    return Published(file, partial(answer, model), f"transformers {title}", answer is _logits)


def _logits(model: Any, images_BCHW: torch.Tensor) -> torch.Tensor:
    found = model(images_BCHW)
    logits_BK: torch.Tensor = found.cls_logits if "cls_logits" in found else found.logits
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


AVERAGED: dict[str, Any] = {"class_token": False, "global_pool": "avg", "fc_norm": False}
MAPPED: dict[str, Any] = {"class_token": False, "global_pool": "map"}
LAYERSCALE = "timm ViT with LayerScale"
CLIP_TIMM: dict[str, Any] = {"pre_norm": True, "norm_layer": _EPSILON_CLIP, "act_layer": GELU}

_DINO_V2_HF = partial(
    _transformers,
    title="DINOv2 with registers",
    kind="Dinov2WithRegistersModel",
    answer=_class_token,
    num_register_tokens=3,
    mlp_ratio=2,
    **_DINO,
)
_VIT_HF = partial(
    _transformers,
    title="ViT",
    kind="ViTForImageClassification",
    answer=_logits,
    num_labels=CLASSES,
    **_HF,
)
_CLIP_HF = partial(_transformers, title="CLIP image tower", answer=_pooled)
_TEXTS: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 16)
_TEXTS |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
PUBLISHED: dict[str, Callable[[Path], Published]] = {
    "torchvision": _torchvision,
    "torchvision, tanh head": partial(_torchvision, representation_size=DIM),
    "torchvision, old names": _torchvision_old,
    "timm": _timm,
    "timm, positions of patches": partial(_timm, no_embed_class=True),
    "timm, registers": partial(_timm, reg_tokens=3),
    "timm, registers without positions": partial(_timm, reg_tokens=4, no_embed_class=True),
    "timm, norm before": partial(_timm, title="timm CLIP image tower", **CLIP_TIMM),
    "timm, average": partial(_timm, **AVERAGED),
    "timm, attention pooling": partial(_timm, **MAPPED),
    "timm, no biases": partial(_timm, qkv_bias=False),
    "DeiT": partial(_timm, wrap=_deit),
    "DeiT, distilled": _deit_distilled,
    "DeiT III": partial(
        _timm, title=LAYERSCALE, wrap=_deit_3, no_embed_class=True, init_values=1e-6
    ),
    "DINO": partial(_timm, title="DINO", wrap=_dino, num_classes=0),
    "DINOv2, chunks": partial(_dinov2, chunked=True),
    "DINOv2, registers": partial(_dinov2, registers=4),
    "MAE": partial(_timm, title="MAE", wrap=_mae, num_classes=0),
    "transformers ViT": _VIT_HF,
    "transformers ViT, current names": partial(_VIT_HF, current_names=True),
    "transformers ViTModel": partial(
        _transformers, title="ViT", kind="ViTModel", answer=_class_token, qkv_bias=False, **_HF
    ),
    "transformers DeiT with teacher": partial(
        _transformers,
        title="DeiT",
        kind="DeiTForImageClassificationWithTeacher",
        answer=_logits,
        num_labels=CLASSES,
        hidden_act="gelu_new",
        **_HF,
    ),
    "transformers DINOv2": partial(
        _transformers,
        title="DINOv2",
        kind="Dinov2ForImageClassification",
        answer=_class_token,
        mlp_ratio=2,
        **_DINO,
    ),
    "transformers DINOv2 with registers": _DINO_V2_HF,
    "transformers DINOv2 with registers, current names": partial(_DINO_V2_HF, current_names=True),
    "transformers MAE": partial(
        _transformers,
        title="MAE",
        kind="ViTMAEForPreTraining",
        answer=_all_patches,
        mask_ratio=0.0,
        **_HF,
        **_DECODER,
    ),
    "transformers CLIP tower": partial(_CLIP_HF, kind="CLIPVisionModel", **_HF),
    "transformers CLIP, both towers": partial(
        _CLIP_HF, kind="CLIPModel", text_config=_TEXTS, vision_config=_HF
    ),
    "OpenAI CLIP": partial(_openai, prefix="visual."),
    "OpenAI CLIP, tower": partial(_openai, prefix=""),
    "JAX": _jax,
    "JAX, optimizer's tree": partial(_jax, prefix="opt/target/"),
    "JAX, big_vision": partial(_jax, prefix="params/", names=_BIG_VISION),
    "JAX, tanh head": _jax_hidden,
}
"""Writes a file of each layout into a folder."""
