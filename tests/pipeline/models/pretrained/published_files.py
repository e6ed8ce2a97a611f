"""Weight files in every layout, written by the libraries themselves, with what they compute."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from timm.layers import GELU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    _convert_dinov2,
    _convert_openai_clip,
    _load_weights,
)
from torch import nn

from tests.pipeline.models.pretrained.hugging_face_files import HUGGING_FACE
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


def _timm(folder: Path, title: str = "timm ViT", **settings: Any) -> Published:
    model = timm_vit(**settings)
    return Published(saved(folder, state_of(model)), model, title)


def _deit(folder: Path) -> Published:
    """Write DeiT's repository's checkpoint: wrapped, with the command line beside the weights."""
    model = timm_vit()
    wrapped = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    contents = {"model": wrapped, "args": argparse.Namespace(lr=0.1), "epoch": 3}
    return Published(pickled(folder, contents), model, "timm ViT")


def _deit_distilled(folder: Path) -> Published:
    model = timm_vit(kind=VisionTransformerDistilled)

    def answer(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK: torch.Tensor = model.head(model.forward_features(images_BCHW)[:, 0])
        return logits_BK

    return Published(saved(folder, state_of(model)), answer, "distilled DeiT")


def _deit_3(folder: Path) -> Published:
    """Write DeiT III's names: positions for the patches alone, gains called gamma."""
    model = timm_vit(no_embed_class=True, init_values=1e-6)
    tensors = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
        for name, tensor in state_of(model).items()
    }
    return Published(pickled(folder, {"model": tensors}), model, "timm ViT with LayerScale")


def _dino(folder: Path) -> Published:
    """Write DINO's full checkpoint: a teacher with its projection head, a student, an optimizer."""
    model = timm_vit(num_classes=0)
    teacher = {f"backbone.{name}": tensor for name, tensor in state_of(model).items()}
    teacher |= {"head.mlp.0.weight": torch.ones(4, DIM), "head.last_layer.weight_g": torch.ones(9)}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}
    contents = {"teacher": teacher, "student": dict(teacher), "optimizer": optimizer, "epoch": 1}
    return Published(pickled(folder, contents), model, "DINO", has_head=False)


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
    return Published(pickled(folder, tensors), model, "DINOv2", has_head=False)


def _mae(folder: Path) -> Published:
    model = timm_vit(num_classes=0)
    decoder = {"mask_token": torch.randn(1, 1, 8), "decoder_pred.weight": torch.randn(12, 8)}
    decoder["decoder_blocks.0.norm1.weight"] = torch.randn(8)
    contents = {"model": state_of(model) | decoder}
    return Published(pickled(folder, contents), model, "MAE", has_head=False)


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


def _jax(folder: Path, prefix: str = "", *, hidden: bool = False) -> Published:
    """Write a JAX file; timm's own loader of such files computes the answer."""
    arrays = jax_arrays(state_of(timm_vit()))
    file = folder / "weights.npz"
    loaded = timm_vit()
    np.savez(file, **{prefix + name: array for name, array in arrays.items()})
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
        _load_weights(loaded, str(file))
    if not hidden:
        return Published(file, loaded, "JAX ViT")
    weight, bias = torch.randn(DIM, DIM) / DIM**0.5, torch.randn(DIM)
    extra = {"pre_logits/kernel": weight.numpy(), "pre_logits/bias": bias.numpy()}
    np.savez(file, **arrays, **extra)

    def answer(images_BCHW: torch.Tensor) -> torch.Tensor:
        features_BD = loaded.forward_features(images_BCHW)[:, 0]
        logits_BK: torch.Tensor = loaded.head(torch.tanh(features_BD @ weight + bias))
        return logits_BK

    return Published(file, answer, "JAX ViT")


_BIG_VISION = {
    "Transformer/posembed_input/pos_embedding": "pos_embedding",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
}


def _big_vision(folder: Path) -> Published:
    """Write the names of big_vision, the successor of the original code."""
    arrays: dict[str, Any] = {}
    for name, array in jax_arrays(state_of(timm_vit())).items():
        theirs = name
        for original, successor in _BIG_VISION.items():
            theirs = theirs.replace(original, successor)
        arrays[f"params/{theirs}"] = array
    file = folder / "weights.npz"
    np.savez(file, **arrays)
    loaded = timm_vit()
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
        _load_weights(loaded, str(file))
    return Published(file, loaded, "JAX ViT")


AVERAGED: dict[str, Any] = {"class_token": False, "global_pool": "avg", "fc_norm": False}
MAPPED: dict[str, Any] = {"class_token": False, "global_pool": "map"}
LAYERSCALE = "timm ViT with LayerScale"
CLIP_TIMM: dict[str, Any] = {"pre_norm": True, "norm_layer": _EPSILON_CLIP, "act_layer": GELU}

PUBLISHED: dict[str, Callable[[Path], Published]] = {
    "torchvision": _torchvision,
    "torchvision, tanh head": partial(_torchvision, representation_size=DIM),
    "torchvision, old names": _torchvision_old,
    "timm": _timm,
    "timm, positions of patches": partial(_timm, no_embed_class=True),
    "timm, registers": partial(_timm, reg_tokens=3),
    "timm, registers without positions": partial(_timm, reg_tokens=4, no_embed_class=True),
    "timm, gains": partial(_timm, title=LAYERSCALE, init_values=1e-5),
    "timm, norm before": partial(_timm, title="timm CLIP image tower", **CLIP_TIMM),
    "timm, registers, norm before": partial(
        _timm, title="timm CLIP image tower", reg_tokens=2, **CLIP_TIMM
    ),
    "timm, average": partial(_timm, **AVERAGED),
    "timm, attention pooling": partial(_timm, **MAPPED),
    "timm, no biases": partial(_timm, qkv_bias=False),
    "DeiT": _deit,
    "DeiT, distilled": _deit_distilled,
    "DeiT III": _deit_3,
    "DINO": _dino,
    "DINOv2": _dinov2,
    "DINOv2, chunks": partial(_dinov2, chunked=True),
    "DINOv2, registers": partial(_dinov2, registers=4),
    "MAE": _mae,
    **HUGGING_FACE,
    "OpenAI CLIP": partial(_openai, prefix="visual."),
    "OpenAI CLIP, tower": partial(_openai, prefix=""),
    "JAX": _jax,
    "JAX, optimizer's tree": partial(_jax, prefix="opt/target/"),
    "JAX, big_vision": _big_vision,
    "JAX, tanh head": partial(_jax, hidden=True),
}
"""Writes a file of each layout into a folder."""
