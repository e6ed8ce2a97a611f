"""The names that each library gives the parts of a Vision Transformer in its weight files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from patchline.pipeline.models.pretrained.layout import (
    CLIP_MEAN,
    CLIP_STD,
    HALVES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Layout,
    Rules,
)

_TOWER = r"(?:vision_model\.)?"
_CLIP_BLOCK = _TOWER + r"encoder\.layers\.(\d+)\."
_TEXT = "tower for texts"
_PROJECTION = "projection to the space shared with texts"
_ACTIVATION_NOTE = (
    "The activation is not in the file: quick_gelu, as in OpenAI's CLIP; for OpenCLIP's weights "
    "set model.activation gelu."
)

_TRANSFORMERS = Layout(
    title="transformers CLIP image tower",
    signature=(_TOWER + r"embeddings\.class_embedding", _TOWER + r"pre_layrnorm\.weight"),
    names=(
        (_TOWER + r"embeddings\.class_embedding", "class_token.token_11D"),
        (_TOWER + r"embeddings\.position_embedding\.weight", "position_embedding.positions_1ND"),
        (
            _TOWER + r"embeddings\.patch_embedding\.(weight|bias)",
            r"patch_embedding.projection.\1",
        ),
        (_TOWER + r"pre_layrnorm\.(weight|bias)", r"embedding_norm.\1"),
        (_CLIP_BLOCK + r"layer_norm1\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (_CLIP_BLOCK + r"self_attn\.([qkv])_proj\.(weight|bias)", r"blocks.\1.attention.\2.\3"),
        (_CLIP_BLOCK + r"self_attn\.out_proj\.(weight|bias)", r"blocks.\1.attention.projection.\2"),
        (_CLIP_BLOCK + r"layer_norm2\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (_CLIP_BLOCK + r"mlp\.fc1\.(weight|bias)", r"blocks.\1.mlp.expand.\2"),
        (_CLIP_BLOCK + r"mlp\.fc2\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (_TOWER + r"post_layernorm\.(weight|bias)", r"norm.\1"),
    ),
    skipped=(
        (r"text_model\..*", _TEXT),
        (r"text_projection\..*|visual_projection\..*", _PROJECTION),
        (r"logit_scale", "temperature of the comparison with texts"),
        (r"classifier\..*", "head on the average of the patches before the last norm"),
    ),
    mean=CLIP_MEAN,
    std=CLIP_STD,
    norm_epsilon=1e-5,
    activation="quick_gelu",
    resizing="bicubic",
    activation_note=_ACTIVATION_NOTE,
)


def _openai_names(tower: str) -> Rules:
    block = tower + r"transformer\.resblocks\.(\d+)\."
    return (
        (tower + r"class_embedding", "class_token.token_11D"),
        (tower + r"positional_embedding", "position_embedding.positions_1ND"),
        (tower + r"conv1\.(weight|bias)", r"patch_embedding.projection.\1"),
        (tower + r"ln_pre\.(weight|bias)", r"embedding_norm.\1"),
        (block + r"ln_1\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (block + r"attn\.in_proj_(weight|bias)", r"blocks.\1.attention.query_key_value.\2"),
        (block + r"attn\.out_proj\.(weight|bias)", r"blocks.\1.attention.projection.\2"),
        (block + r"ls_1\.gamma", r"blocks.\1.attention_scale.gain_D"),
        (block + r"ln_2\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (block + r"mlp\.c_fc\.(weight|bias)", r"blocks.\1.mlp.expand.\2"),
        (block + r"mlp\.c_proj\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (block + r"ls_2\.gamma", r"blocks.\1.mlp_scale.gain_D"),
        (tower + r"ln_post\.(weight|bias)", r"norm.\1"),
    )


def _openai(tower: str, skipped: Rules) -> Layout:
    return Layout(
        title="OpenAI CLIP image tower",
        signature=(
            tower + r"class_embedding",
            tower + r"conv1\.weight",
            tower + r"transformer\.resblocks\.0\.ln_1\.weight",
        ),
        names=_openai_names(tower),
        skipped=((tower + r"proj", _PROJECTION), *skipped),
        mean=CLIP_MEAN,
        std=CLIP_STD,
        norm_epsilon=1e-5,
        activation="quick_gelu",
        activation_note=_ACTIVATION_NOTE,
    )


CLIP_LAYOUTS = (
    _TRANSFORMERS,
    _openai(
        r"visual\.",
        (
            (r"text_projection(?:\..*)?", _PROJECTION),
            (r"logit_(?:scale|bias)", "temperature of the comparison with texts"),
            (r"(?:transformer|token_embedding|ln_final|text)\..*|positional_embedding", _TEXT),
        ),
    ),
    _openai("", ()),
)
"""The last layout is the tower that was saved without the tower for texts."""


_JAX_TREE = r"(?:opt/target/|params/(?:img/)?)?"
_JAX_BLOCK = _JAX_TREE + r"Transformer/encoderblock_(\d+)/"
_JAX_ATTENTION = _JAX_BLOCK + r"MultiHeadDotProductAttention_[01]/"
_SPLIT = 3
"""Dimensions of the kernels of an attention layer, whose heads are kept apart."""


def _orient(name: str, tensor: torch.Tensor) -> torch.Tensor:
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
    oriented=_orient,
    num_heads=_num_heads,
)


_TIMM_BLOCK = r"blocks\.(?:\d+\.)?(\d+)\."  # DINOv2 may number chunks of blocks as well
_TIMM_SIGNATURE = (r"patch_embed\.proj\.weight", _TIMM_BLOCK + r"attn\.qkv\.weight")

_TIMM = Layout(
    title="timm ViT",
    signature=_TIMM_SIGNATURE,
    names=(
        (r"cls_token", "class_token.token_11D"),
        (r"pos_embed", "position_embedding.positions_1ND"),
        (r"reg_token|register_tokens", "registers.registers_1RD"),
        (r"dist_token", "distillation_token"),
        (r"patch_embed\.proj\.(weight|bias)", r"patch_embedding.projection.\1"),
        (r"norm_pre\.(weight|bias)", r"embedding_norm.\1"),
        (_TIMM_BLOCK + r"norm1\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (_TIMM_BLOCK + r"attn\.qkv\.(weight|bias)", r"blocks.\1.attention.query_key_value.\2"),
        (_TIMM_BLOCK + r"attn\.proj\.(weight|bias)", r"blocks.\1.attention.projection.\2"),
        (_TIMM_BLOCK + r"(?:ls1\.gamma|gamma_1)", r"blocks.\1.attention_scale.gain_D"),
        (_TIMM_BLOCK + r"norm2\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (_TIMM_BLOCK + r"mlp\.fc1\.(weight|bias)", r"blocks.\1.mlp.expand.\2"),
        (_TIMM_BLOCK + r"mlp\.fc2\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (_TIMM_BLOCK + r"(?:ls2\.gamma|gamma_2)", r"blocks.\1.mlp_scale.gain_D"),
        (r"norm\.(weight|bias)", r"norm.\1"),
        (r"attn_pool\.latent", "pooling.probe_11D"),
        (r"attn_pool\.q\.(weight|bias)", r"pooling.query.\1"),
        (r"attn_pool\.kv\.(weight|bias)", r"pooling.key_value.\1"),
        (r"attn_pool\.proj\.(weight|bias)", r"pooling.projection.\1"),
        (r"attn_pool\.norm\.(weight|bias)", r"pooling.norm.\1"),
        (r"attn_pool\.mlp\.fc1\.(weight|bias)", r"pooling.mlp.expand.\1"),
        (r"attn_pool\.mlp\.fc2\.(weight|bias)", r"pooling.mlp.contract.\1"),
        (r"pre_logits\.fc\.(weight|bias)", r"head.hidden.\1"),
        (r"head\.(weight|bias)", r"head.\1"),
    ),
    skipped=(
        (r"mask_token", "mask token of the pre-training"),
        (r"decoder_.*", "decoder of the pre-training"),
        (r"head_dist\..*", "head of the distillation token"),
        (
            r"(?:dino_|ibot_)?head\.(?:mlp2?|last_layer2?|last_norm2?)\..*",
            "projection head of the self-distillation",
        ),
    ),
    refused=(
        (r"fc_norm\..*", "a norm after averaging the patches (fc_norm)"),
        (_TIMM_BLOCK + r"attn\.[qk]_norm\..*", "a norm of queries and keys with another formula"),
        (_TIMM_BLOCK + r"attn\.[qv]_bias", "BEiT's attention"),
        (_TIMM_BLOCK + r"mlp\.(?:w12|w3|fc1_[gx]|norm)\..*", "a gated MLP (SwiGLU)"),
        (r"patch_embed\.(?:backbone|norm)\..*", "a patch embedding with several layers"),
    ),
    mean=HALVES,
    std=HALVES,
    registers_have_positions=True,
    prefix_may_lack_positions=True,
    averages_without_class_token=True,
    pixel_note="DeiT and DINO used ImageNet's",
)
_FROM_IMAGENET = replace(_TIMM, mean=IMAGENET_MEAN, std=IMAGENET_STD, pixel_note="")
_TIMM_DINOV2 = replace(
    _FROM_IMAGENET,
    title="DINOv2",
    signature=(*_TIMM_SIGNATURE, r"mask_token", _TIMM_BLOCK + r"ls1\.gamma"),
    registers_have_positions=False,
    prefix_may_lack_positions=False,
    averages_without_class_token=False,
    resizing="bicubic_offset",
)

TIMM_LAYOUTS = (
    replace(
        _FROM_IMAGENET,
        title="MAE",
        signature=(*_TIMM_SIGNATURE, r"decoder_pred\.weight"),
        resizing="bicubic",
    ),
    replace(
        _FROM_IMAGENET,
        title="distilled DeiT",
        signature=(*_TIMM_SIGNATURE, r"dist_token"),
        resizing="bicubic",
    ),
    replace(
        _TIMM_DINOV2,
        title="DINOv2 with registers",
        signature=(*_TIMM_DINOV2.signature, r"register_tokens"),
        resizing="antialiased",
    ),
    _TIMM_DINOV2,
    replace(
        _TIMM,
        title="timm CLIP image tower",
        signature=(*_TIMM_SIGNATURE, r"norm_pre\.weight"),
        mean=CLIP_MEAN,
        std=CLIP_STD,
        norm_epsilon=1e-5,
        pixel_note="",
        activation_note=(
            "The activation is not in the file: gelu, as for most of timm's CLIP towers; for those "
            "with quickgelu in their name, set model.activation quick_gelu."
        ),
    ),
    replace(
        _FROM_IMAGENET,
        title="timm ViT with LayerScale",
        signature=(*_TIMM_SIGNATURE, _TIMM_BLOCK + r"(?:ls1\.gamma|gamma_1)"),
    ),
    replace(
        _FROM_IMAGENET,
        title="DINO",
        signature=(*_TIMM_SIGNATURE, r"head\.last_layer\.weight.*"),
        resizing="bicubic_offset",
    ),
    _TIMM,
)
"""Special layouts before the general one."""


_TV_BLOCK = r"encoder\.layers\.encoder_layer_(\d+)\."

TORCHVISION = Layout(
    title="torchvision ViT",
    signature=(r"class_token", r"encoder\.pos_embedding", r"conv_proj\.weight"),
    names=(
        (r"class_token", "class_token.token_11D"),
        (r"encoder\.pos_embedding", "position_embedding.positions_1ND"),
        (r"conv_proj\.(weight|bias)", r"patch_embedding.projection.\1"),
        (_TV_BLOCK + r"ln_1\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (_TV_BLOCK + r"self_attention\.in_proj_(\w+)", r"blocks.\1.attention.query_key_value.\2"),
        (_TV_BLOCK + r"self_attention\.out_proj\.(\w+)", r"blocks.\1.attention.projection.\2"),
        (_TV_BLOCK + r"ln_2\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (_TV_BLOCK + r"mlp\.(?:0|linear_1)\.(weight|bias)", r"blocks.\1.mlp.expand.\2"),
        (_TV_BLOCK + r"mlp\.(?:3|linear_2)\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (r"encoder\.ln\.(weight|bias)", r"norm.\1"),
        (r"heads\.pre_logits\.(weight|bias)", r"head.hidden.\1"),
        (r"heads\.head\.(weight|bias)", r"head.\1"),
    ),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    resizing="bicubic_corners",
)


_HF_MODEL = r"(?:(?:vit|deit|dinov2|dinov2_with_registers)\.)?"
_HF_EMBEDDINGS = _HF_MODEL + r"embeddings\."
_HF_BLOCK = _HF_MODEL + r"(?:encoder\.)?layers?\.(\d+)\."
_HF_SIGNATURE = (_HF_EMBEDDINGS + r"patch_embeddings\.projection\.weight", _HF_BLOCK + r".*")

_HF_VIT = Layout(
    title="transformers ViT",
    signature=_HF_SIGNATURE,
    names=(
        (_HF_EMBEDDINGS + r"cls_token", "class_token.token_11D"),
        (_HF_EMBEDDINGS + r"position_embeddings", "position_embedding.positions_1ND"),
        (_HF_EMBEDDINGS + r"register_tokens", "registers.registers_1RD"),
        (_HF_EMBEDDINGS + r"distillation_token", "distillation_token"),
        (
            _HF_EMBEDDINGS + r"patch_embeddings\.projection\.(weight|bias)",
            r"patch_embedding.projection.\1",
        ),
        (_HF_BLOCK + r"(?:layernorm_before|norm1)\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (
            _HF_BLOCK + r"attention\.(?:attention\.)?([qkv])(?:uery|ey|alue|_proj)\.(weight|bias)",
            r"blocks.\1.attention.\2.\3",
        ),
        (
            _HF_BLOCK + r"attention\.(?:output\.dense|o_proj)\.(weight|bias)",
            r"blocks.\1.attention.projection.\2",
        ),
        (_HF_BLOCK + r"layer_scale1\.lambda1", r"blocks.\1.attention_scale.gain_D"),
        (_HF_BLOCK + r"(?:layernorm_after|norm2)\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (
            _HF_BLOCK + r"(?:intermediate\.dense|mlp\.fc1)\.(weight|bias)",
            r"blocks.\1.mlp.expand.\2",
        ),
        (_HF_BLOCK + r"(?:output\.dense|mlp\.fc2)\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (_HF_BLOCK + r"layer_scale2\.lambda1", r"blocks.\1.mlp_scale.gain_D"),
        (_HF_MODEL + r"layernorm\.(weight|bias)", r"norm.\1"),
        (r"(?:cls_)?classifier\.(weight|bias)", r"head.\1"),
    ),
    skipped=(
        (_HF_MODEL + r"pooler\..*", "pooler, which the logits do not use"),
        (_HF_EMBEDDINGS + r"mask_token", "mask token of the pre-training"),
        (r"distillation_classifier\..*", "head of the distillation token"),
        (r"decoder\..*", "decoder of the pre-training"),
    ),
    refused=((_HF_BLOCK + r"mlp\.weights_(?:in|out)\..*", "a gated MLP (SwiGLU)"),),
    mean=HALVES,
    std=HALVES,
    norm_epsilon=1e-12,
    resizing="bicubic",
)
_HF_DINOV2 = replace(
    _HF_VIT,
    title="transformers DINOv2",
    signature=(*_HF_SIGNATURE, _HF_BLOCK + r"layer_scale1\.lambda1"),
    skipped=(
        *_HF_VIT.skipped,
        (r"classifier\..*", "head on the class token and the average of the patches, concatenated"),
    ),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    norm_epsilon=1e-6,
)

TRANSFORMERS_LAYOUTS = (
    replace(
        _HF_VIT,
        title="transformers MAE",
        signature=(*_HF_SIGNATURE, r"decoder\.decoder_pred\.weight"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    replace(
        _HF_VIT,
        title="transformers DeiT",
        signature=(*_HF_SIGNATURE, _HF_EMBEDDINGS + r"distillation_token"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    replace(
        _HF_DINOV2,
        title="transformers DINOv2 with registers",
        signature=(*_HF_DINOV2.signature, _HF_EMBEDDINGS + r"register_tokens"),
        resizing="antialiased",
    ),
    _HF_DINOV2,
    _HF_VIT,
)
"""Special layouts before the general one."""
