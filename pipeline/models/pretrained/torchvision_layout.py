"""The names of torchvision's `vit_*` models, of all versions."""

from __future__ import annotations

from patchline.pipeline.models.pretrained.layout import IMAGENET_MEAN, IMAGENET_STD, Layout

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
