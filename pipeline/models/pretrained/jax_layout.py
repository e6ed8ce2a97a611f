"""The names of the original JAX files (`.npz`) of the ViT and AugReg papers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from patchline.pipeline.models.pretrained.layout import HALVES, Layout

_JAX_TREE = r"(?:opt/target/|params/(?:img/)?)?"
_JAX_BLOCK = _JAX_TREE + r"Transformer/encoderblock_(\d+)/"
_JAX_ATTENTION = _JAX_BLOCK + r"MultiHeadDotProductAttention_[01]/"
_SPLIT = 3
"""Dimensions of the kernels of an attention layer, whose heads are kept apart."""


def _oriented(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in torch's order: outputs first, heads joined."""
    attention = ".attention." in name
    if name.endswith("patch_embedding.projection.weight"):
        return tensor.permute(3, 2, 0, 1)
    if attention and tensor.ndim == _SPLIT:
        joined = tensor.flatten(0, 1) if ".projection." in name else tensor.flatten(1)
        return joined.T
    if attention and name.endswith("bias"):
        return tensor.flatten()
    return tensor.T if name.endswith("weight") and tensor.ndim == 2 else tensor  # noqa: PLR2004


def _num_heads(tensors: Mapping[str, torch.Tensor]) -> int | None:
    for name, tensor in tensors.items():
        if name.endswith("/query/kernel") and tensor.ndim == _SPLIT:
            return tensor.shape[1]
    return None


def _affine(path: str, ours: str) -> tuple[tuple[str, str], ...]:
    """Return the rules for the weight and the bias of a layer."""
    return (
        (path + r"/(?:kernel|scale)", ours + ".weight"),
        (path + r"/bias", ours + ".bias"),
    )


JAX = Layout(
    title="JAX ViT",
    signature=(_JAX_TREE + r"embedding/kernel", _JAX_TREE + r"Transformer/encoder_norm/scale"),
    names=(
        (_JAX_TREE + r"cls", "class_token.token_11D"),
        (
            _JAX_TREE + r"(?:Transformer/posembed_input/)?pos_embedding",
            "position_embedding.positions_1ND",
        ),
        *_affine(_JAX_TREE + r"embedding", "patch_embedding.projection"),
        *_affine(_JAX_BLOCK + r"LayerNorm_0", r"blocks.\1.attention_norm"),
        *_affine(_JAX_ATTENTION + r"(q)uery", r"blocks.\1.attention.\2"),
        *_affine(_JAX_ATTENTION + r"(k)ey", r"blocks.\1.attention.\2"),
        *_affine(_JAX_ATTENTION + r"(v)alue", r"blocks.\1.attention.\2"),
        *_affine(_JAX_ATTENTION + r"out", r"blocks.\1.attention.projection"),
        *_affine(_JAX_BLOCK + r"LayerNorm_[12]", r"blocks.\1.mlp_norm"),
        *_affine(_JAX_BLOCK + r"MlpBlock_[03]/Dense_0", r"blocks.\1.mlp.expand"),
        *_affine(_JAX_BLOCK + r"MlpBlock_[03]/Dense_1", r"blocks.\1.mlp.contract"),
        *_affine(_JAX_TREE + r"Transformer/encoder_norm", "norm"),
        *_affine(_JAX_TREE + r"pre_logits", "head.hidden"),
        *_affine(_JAX_TREE + r"head", "head"),
    ),
    skipped=((r"opt/state/.*", "state of the optimizer"),),
    refused=(
        (_JAX_TREE + r"Transformer/encoderblock/.*", "blocks that are stacked into one tensor"),
        (_JAX_TREE + r"MAPHead_0/.*", "big_vision's attention pooling"),
    ),
    mean=HALVES,
    std=HALVES,
    averages_without_class_token=True,
    resizing="linear_corners",
    oriented=_oriented,
    num_heads=_num_heads,
)
