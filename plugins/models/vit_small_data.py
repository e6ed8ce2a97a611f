"""A ViT for small data sets: shifted patches and locality self-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from patchline.plugin_api import ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import VIT_SIZES, Size, TransformerConfig

if TYPE_CHECKING:
    import torch


class VitSmallDataConfig(TransformerConfig):
    """Size and regularisation."""

    sizes: ClassVar[Mapping[str, Size]] = {
        **{name: VIT_SIZES[name] for name in ("micro", "mini", "ti", "s", "b")},
        "paper": Size(
            192, 9, 12, 384
        ),  # arXiv 2112.13492, section 4.1, for Tiny-ImageNet and CIFAR
    }

    size: Literal["micro", "mini", "paper", "ti", "s", "b"] = "micro"
    """Dimensions: micro and mini for few cores; paper is the size it uses for small images."""


def build(config: VitSmallDataConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3), whose tokens attend to each other, never to themselves."""
    from torch import nn

    from patchline.pipeline.models.layers.class_token import ClassToken
    from patchline.pipeline.models.layers.encoder_block import LAYER_NORM_EPSILON
    from patchline.pipeline.models.layers.head import LinearHead
    from patchline.pipeline.models.layers.initialisation import truncated_normal
    from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
    from patchline.pipeline.models.layers.locality_attention import LocalitySelfAttention
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
    from patchline.plugins.models.encoder_blocks import plain_blocks

    embed_dim, _, num_heads, _ = config.dimensions()
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    class_token = ClassToken(embed_dim)
    position_embedding = LearnedPositionEmbedding(grid, embed_dim, prefix_tokens=1)
    blocks = plain_blocks(
        config, lambda: LocalitySelfAttention(embed_dim, num_heads, config.attention_dropout)
    )
    return VisionTransformer(
        patch_embedding,
        class_token=class_token,
        position_embedding=position_embedding,
        blocks=blocks.apply(truncated_normal),
        norm=nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON),
        pooling=ClassTokenPooling(),
        head=LinearHead(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
    )


plugin = ModelPlugin(
    summary="A ViT for small data sets: shifted patches, locality self-attention",
    paper="arXiv 2112.13492",
    config_class=VitSmallDataConfig,
    build=build,
    patch_embedding="shifted",
)
