"""A Vision Transformer built from the settings, and the L blocks of its encoder.

Both are those of arXiv 2010.11929, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from patchline.pipeline.models.layers.class_token import ClassToken
from patchline.pipeline.models.layers.encoder_block import EncoderBlock
from patchline.pipeline.models.layers.head import LinearHead
from patchline.pipeline.models.layers.initialisation import xavier, zero_residuals
from patchline.pipeline.models.layers.normalisation import NORMS
from patchline.pipeline.models.layers.positions import Positions, position_embedding
from patchline.pipeline.models.layers.registers import RegisterTokens
from patchline.pipeline.models.layers.stochastic_depth import drop_path_rates
from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
from patchline.plugins.models.transformer_settings import BlockConfig

if TYPE_CHECKING:
    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
    from patchline.plugin_api import ModelContext
    from patchline.plugins.models.transformer_settings import TransformerConfig


def vision_transformer(
    config: TransformerConfig,
    context: ModelContext,
    blocks: Callable[[], nn.ModuleList],
    pooling: Callable[[], nn.Module],
    *,
    positions: Positions = "learned",
    position_std: float = 0.02,
    class_token: bool = False,
    num_registers: int = 0,
    embedding_norm: bool = False,
    norm: Callable[[int], nn.Module] | None = None,
    head: Callable[[int, int], nn.Module] = LinearHead,
    **parts: Any,
) -> VisionTransformer:
    """Return the network; its parts are built, and so initialised, in the order of the arguments.

    Args:
        config: the dimensions and the regularisation of the network.
        context: the format of the images, the number of classes and the patch embedding.
        blocks: builds the encoder blocks.
        pooling: builds what makes one vector of all tokens.
        positions: the position embedding.
        position_std: the standard deviation of learned position embeddings at initialisation.
        class_token: whether there is one.
        num_registers: the number of register tokens.
        embedding_norm: whether tokens are normalised before the first block.
        norm: builds a norm for D features; by default that of the settings.
        head: builds the classifier, given D and K.
        parts: further arguments of `VisionTransformer`.
    """
    embed_dim = config.dimensions().embed_dim
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    if norm is None:
        norm = NORMS["layer_norm"]
        if isinstance(config, BlockConfig):
            norm = partial(NORMS[config.norm], epsilon=config.norm_epsilon)
    return VisionTransformer(
        patch_embedding,
        class_token=ClassToken(embed_dim) if class_token else None,
        position_embedding=position_embedding(
            positions, grid, embed_dim, int(class_token), std=position_std
        ),
        registers=RegisterTokens(num_registers, embed_dim) if num_registers else None,
        embedding_norm=norm(embed_dim) if embedding_norm else None,
        blocks=blocks(),
        norm=norm(embed_dim),
        pooling=pooling(),
        head=head(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
        **parts,
    )


def plain_blocks(
    config: TransformerConfig, attention: Callable[[], MultiHeadSelfAttention], **parts: Any
) -> nn.ModuleList:
    """Return the encoder blocks, with torch's own initial weights.

    Args:
        config: the dimensions and the regularisation of each block.
        attention: builds the attention layer of a block.
        parts: further arguments of each `EncoderBlock`.
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
        config: the dimensions, the regularisation and the parts of each block.
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
