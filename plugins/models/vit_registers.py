"""A ViT with register tokens, which keep artifacts out of the patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from patchline.plugin_api import ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import BlockConfig

if TYPE_CHECKING:
    import torch


class VitRegistersConfig(BlockConfig):
    """Size, regularisation, registers."""

    size: Literal["micro", "mini", "ti", "s", "b", "l", "h"] = "micro"
    """Dimensions: micro and mini for small images and few cores; ti, s, b, l, h as for vit."""

    num_registers: Annotated[int, Field(ge=1, le=64)] = 4
    """Register tokens; the paper settles on 4."""

    embedding_norm: bool = False
    """Normalise the tokens before the first block, as in CLIP (arXiv 2103.00020, section 2.4)."""


def build(config: VitRegistersConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 2.2): the head reads the class token."""
    from patchline.pipeline.models.layers.class_token import ClassToken
    from patchline.pipeline.models.layers.head import LinearHead
    from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
    from patchline.pipeline.models.layers.normalisation import NORMS
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.pipeline.models.layers.registers import RegisterTokens
    from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
    from patchline.plugins.models.encoder_blocks import encoder_blocks

    embed_dim = config.dimensions().embed_dim
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    norm = NORMS[config.norm]
    return VisionTransformer(
        patch_embedding,
        class_token=ClassToken(embed_dim),
        position_embedding=LearnedPositionEmbedding(grid, embed_dim, prefix_tokens=1),
        registers=RegisterTokens(config.num_registers, embed_dim),
        embedding_norm=norm(embed_dim, config.norm_epsilon) if config.embedding_norm else None,
        blocks=encoder_blocks(config),
        norm=norm(embed_dim, config.norm_epsilon),
        pooling=ClassTokenPooling(),
        head=LinearHead(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
    )


plugin = ModelPlugin(
    summary="A ViT with register tokens, which keep artifacts out of the patches",
    paper="arXiv 2309.16588",
    config_class=VitRegistersConfig,
    build=build,
)
