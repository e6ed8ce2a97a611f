"""The names of Hugging Face's transformers for ViT, DeiT, DINOv2 and MAE, of all versions."""

from __future__ import annotations

from dataclasses import replace

from patchline.pipeline.models.pretrained.layout import HALVES, IMAGENET_MEAN, IMAGENET_STD, Layout

_MODEL = r"(?:(?:vit|deit|dinov2|dinov2_with_registers)\.)?"
_EMBEDDINGS = _MODEL + r"embeddings\."
_BLOCK = _MODEL + r"(?:encoder\.)?layers?\.(\d+)\."
_SIGNATURE = (_EMBEDDINGS + r"patch_embeddings\.projection\.weight", _BLOCK + r".*")

_VIT = Layout(
    title="transformers ViT",
    signature=_SIGNATURE,
    names=(
        (_EMBEDDINGS + r"cls_token", "class_token.token_11D"),
        (_EMBEDDINGS + r"position_embeddings", "position_embedding.positions_1ND"),
        (_EMBEDDINGS + r"register_tokens", "registers.registers_1RD"),
        (_EMBEDDINGS + r"distillation_token", "distillation_token"),
        (
            _EMBEDDINGS + r"patch_embeddings\.projection\.(weight|bias)",
            r"patch_embedding.projection.\1",
        ),
        (_BLOCK + r"(?:layernorm_before|norm1)\.(weight|bias)", r"blocks.\1.attention_norm.\2"),
        (
            _BLOCK + r"attention\.(?:attention\.)?([qkv])(?:uery|ey|alue|_proj)\.(weight|bias)",
            r"blocks.\1.attention.\2.\3",
        ),
        (
            _BLOCK + r"attention\.(?:output\.dense|o_proj)\.(weight|bias)",
            r"blocks.\1.attention.projection.\2",
        ),
        (_BLOCK + r"layer_scale1\.lambda1", r"blocks.\1.attention_scale.gain_D"),
        (_BLOCK + r"(?:layernorm_after|norm2)\.(weight|bias)", r"blocks.\1.mlp_norm.\2"),
        (_BLOCK + r"(?:intermediate\.dense|mlp\.fc1)\.(weight|bias)", r"blocks.\1.mlp.expand.\2"),
        (_BLOCK + r"(?:output\.dense|mlp\.fc2)\.(weight|bias)", r"blocks.\1.mlp.contract.\2"),
        (_BLOCK + r"layer_scale2\.lambda1", r"blocks.\1.mlp_scale.gain_D"),
        (_MODEL + r"layernorm\.(weight|bias)", r"norm.\1"),
        (r"(?:cls_)?classifier\.(weight|bias)", r"head.\1"),
    ),
    skipped=(
        (_MODEL + r"pooler\..*", "pooler, which the logits do not use"),
        (_EMBEDDINGS + r"mask_token", "mask token of the pre-training"),
        (r"distillation_classifier\..*", "head of the distillation token"),
        (r"decoder\..*", "decoder of the pre-training"),
    ),
    refused=((_BLOCK + r"mlp\.weights_(?:in|out)\..*", "a gated MLP (SwiGLU)"),),
    mean=HALVES,
    std=HALVES,
    norm_epsilon=1e-12,
    resizing="bicubic",
)
_DINOV2 = replace(
    _VIT,
    title="transformers DINOv2",
    signature=(*_SIGNATURE, _BLOCK + r"layer_scale1\.lambda1"),
    skipped=(
        *_VIT.skipped,
        (r"classifier\..*", "head on the class token and the average of the patches, concatenated"),
    ),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    norm_epsilon=1e-6,
)

TRANSFORMERS_LAYOUTS = (
    replace(
        _VIT,
        title="transformers MAE",
        signature=(*_SIGNATURE, r"decoder\.decoder_pred\.weight"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    replace(
        _VIT,
        title="transformers DeiT",
        signature=(*_SIGNATURE, _EMBEDDINGS + r"distillation_token"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    replace(
        _DINOV2,
        title="transformers DINOv2 with registers",
        signature=(*_DINOV2.signature, _EMBEDDINGS + r"register_tokens"),
        resizing="antialiased",
    ),
    _DINOV2,
    _VIT,
)
"""Special layouts before the general one."""
