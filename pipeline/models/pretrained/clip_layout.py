"""The names of CLIP's image tower (arXiv 2103.00020): transformers', OpenAI's and OpenCLIP's."""

from __future__ import annotations

from patchline.pipeline.models.pretrained.layout import CLIP_MEAN, CLIP_STD, Layout, Rules

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
