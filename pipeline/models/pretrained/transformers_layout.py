"""The names of Hugging Face's transformers for ViT, DeiT, DINOv2 and MAE, of all versions."""

from __future__ import annotations

from dataclasses import replace

from patchline.pipeline.models.pretrained.layout import HALVES, IMAGENET_MEAN, IMAGENET_STD, Layout

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
