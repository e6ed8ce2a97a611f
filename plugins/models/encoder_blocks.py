"""The encoder of a ViT: L blocks built from the settings (arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from patchline.pipeline.models.layers.encoder_block import EncoderBlock
from patchline.pipeline.models.layers.initialisation import xavier, zero_residuals
from patchline.pipeline.models.layers.stochastic_depth import drop_path_rates

if TYPE_CHECKING:
    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
    from patchline.plugins.models.transformer_settings import BlockConfig, TransformerConfig


def plain_blocks(
    config: TransformerConfig, attention: Callable[[], MultiHeadSelfAttention], **parts: Any
) -> nn.ModuleList:
    """Return the encoder blocks, with torch's own initial weights.

    Args:
        config: dimensions and regularisation of each block.
        attention: builds the attention layer of a block.
        parts: further arguments of each block.
    """
    size = config.dimensions()
    return nn.ModuleList(
        EncoderBlock(
            attention(), size.mlp_dim, dropout=config.dropout, stochastic_depth=rate, **parts
        )
        for rate in drop_path_rates(config.stochastic_depth, size.depth)
    )


def encoder_blocks(
    config: BlockConfig, attention: Callable[[], MultiHeadSelfAttention] | None = None
) -> nn.ModuleList:
    """Return the encoder blocks, with the parts and the initial weights of the settings.

    Args:
        config: dimensions, regularisation and parts of each block.
        attention: builds the attention layer of a block; by default that of the paper.
    """
    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention

    embed_dim, _, num_heads, _ = config.dimensions()

    def published() -> MultiHeadSelfAttention:
        dropout, qk_norm = config.attention_dropout, config.qk_norm
        return MultiHeadSelfAttention(embed_dim, num_heads, dropout, qk_norm=qk_norm)

    blocks = plain_blocks(
        config,
        attention or published,
        layer_scale=config.layer_scale,
        norm=config.norm,
        norm_epsilon=config.norm_epsilon,
        activation=config.activation,
    )
    blocks.apply(xavier)
    if config.residual_init == "zero":
        blocks.apply(zero_residuals)
    return blocks
