"""A plain ViT: averaged tokens, fixed sine-cosine positions, no class token and no dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from patchline.plugin_api import DataTraits, ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import TransformerConfig, check_sine_cosine

if TYPE_CHECKING:
    import torch


class SimpleVitConfig(TransformerConfig):
    """Size and regularisation."""

    size: Literal["micro", "mini", "ti", "s", "b", "l"] = "micro"
    """Dimensions: micro and mini for small images and few cores; s is the paper's."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the dimensions, and check that the positions fit them."""
        check_sine_cosine(self.dimensions().embed_dim)
        return super().resolved_for(traits)


def build(config: SimpleVitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3)."""
    from torch import nn

    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
    from patchline.pipeline.models.layers.encoder_block import LAYER_NORM_EPSILON
    from patchline.pipeline.models.layers.head import LinearHead
    from patchline.pipeline.models.layers.initialisation import xavier
    from patchline.pipeline.models.layers.pooling import AveragePooling
    from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding
    from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
    from patchline.plugins.models.encoder_blocks import plain_blocks

    embed_dim, _, num_heads, _ = config.dimensions()
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    blocks = plain_blocks(
        config, lambda: MultiHeadSelfAttention(embed_dim, num_heads, config.attention_dropout)
    )
    return VisionTransformer(
        patch_embedding,
        position_embedding=SineCosinePositionEmbedding(grid, embed_dim),
        blocks=blocks.apply(xavier),
        norm=nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON),
        pooling=AveragePooling(),
        head=LinearHead(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
    )


plugin = ModelPlugin(
    summary="A plain ViT: averaged tokens, fixed sine-cosine positions, no class token",
    paper="arXiv 2205.01580",
    config_class=SimpleVitConfig,
    build=build,
)
