"""A plain ViT: averaged tokens, fixed sine-cosine positions, no class token and no dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from patchline.plugin_api import ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import TransformerConfig

if TYPE_CHECKING:
    import torch


class SimpleVitConfig(TransformerConfig):
    """Size and regularisation."""

    size: Literal["micro", "mini", "ti", "s", "b", "l"] = "micro"
    """Dimensions: micro and mini for small images and few cores; s is the paper's."""

    positions: ClassVar[str] = "sine_cosine"


def build(config: SimpleVitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3)."""
    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
    from patchline.pipeline.models.layers.initialisation import xavier
    from patchline.pipeline.models.layers.pooling import AveragePooling
    from patchline.plugins.models.encoder_blocks import plain_blocks, vision_transformer

    embed_dim, _, num_heads, _ = config.dimensions()

    def attention() -> MultiHeadSelfAttention:
        return MultiHeadSelfAttention(embed_dim, num_heads, config.attention_dropout)

    return vision_transformer(
        config,
        context,
        lambda: plain_blocks(config, attention).apply(xavier),
        AveragePooling,
        positions="sine_cosine",
    )


plugin = ModelPlugin(
    summary="A plain ViT: averaged tokens, fixed sine-cosine positions, no class token",
    paper="arXiv 2205.01580",
    config_class=SimpleVitConfig,
    build=build,
)
