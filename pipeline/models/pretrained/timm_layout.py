"""The names of timm, which the repositories of DeiT, DINO, DINOv2 and MAE use as well."""

from __future__ import annotations

from dataclasses import replace

from patchline.pipeline.models.pretrained.layout import (
    CLIP_MEAN,
    CLIP_STD,
    HALVES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Layout,
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
