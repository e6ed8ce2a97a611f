"""The Vision Transformer as published: class token, learned positions, pre-norm blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from patchline.plugin_api import DataTraits, ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import BlockConfig, check_sine_cosine

if TYPE_CHECKING:
    import torch


class VitConfig(BlockConfig):
    """Size, regularisation, positions, pooling, head, test-time augmentation."""

    size: Literal["micro", "mini", "ti", "s", "b", "l", "h"] = "micro"
    """Dimensions: micro and mini for small images and few cores; ti, s, b, l, h as published."""

    positions: Literal["learned", "sine_cosine", "none"] = "learned"
    """Position embedding: learned (as published), fixed sine-cosine, or none."""

    pooling: Literal["class_token", "average", "attention"] = "class_token"
    """Pooling before the head: the class token (as published), the average of the patches, or
    attention pooling with a learned query (arXiv 2106.04560)."""

    head: Literal["linear", "tanh"] = "linear"
    """Head: linear (as in fine-tuning), or with one hidden tanh layer (as in pre-training)."""

    test_time_flip: bool = False
    """Predict an image together with its mirror image, and give the head the average of the two:
    more accurate where a mirrored image still shows its class, at twice the computation of a
    prediction. Training does not change."""

    embedding_norm: bool = False
    """Normalise the tokens before the first block, as in CLIP (arXiv 2103.00020, section 2.4)."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the dimensions, and check that the positions fit them."""
        if self.positions == "sine_cosine":
            check_sine_cosine(self.dimensions().embed_dim)
        return super().resolved_for(traits)


def build(config: VitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3.1, equations 1 to 4)."""
    from patchline.pipeline.models.layers.class_token import ClassToken
    from patchline.pipeline.models.layers.head import LinearHead, TanhHead
    from patchline.pipeline.models.layers.normalisation import NORMS
    from patchline.pipeline.models.layers.positions import position_embedding
    from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
    from patchline.plugins.models.encoder_blocks import encoder_blocks

    embed_dim = config.dimensions().embed_dim
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    prefix_tokens = 1 if config.pooling == "class_token" else 0
    norm = NORMS[config.norm]
    head = TanhHead if config.head == "tanh" else LinearHead
    return VisionTransformer(
        patch_embedding,
        class_token=ClassToken(embed_dim) if prefix_tokens else None,
        position_embedding=position_embedding(config.positions, grid, embed_dim, prefix_tokens),
        embedding_norm=norm(embed_dim, config.norm_epsilon) if config.embedding_norm else None,
        blocks=encoder_blocks(config),
        norm=norm(embed_dim, config.norm_epsilon),
        pooling=_pooling(config),
        head=head(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
        test_time_flip=config.test_time_flip,
    )


def _pooling(config: VitConfig) -> torch.nn.Module:
    from patchline.pipeline.models.layers.pooling import (
        AttentionPooling,
        AveragePooling,
        ClassTokenPooling,
    )

    embed_dim, _, num_heads, mlp_dim = config.dimensions()
    if config.pooling == "attention":
        return AttentionPooling(
            embed_dim,
            num_heads,
            mlp_dim,
            activation=config.activation,
            norm_epsilon=config.norm_epsilon,
        )
    return AveragePooling() if config.pooling == "average" else ClassTokenPooling()


plugin = ModelPlugin(
    summary="Vision Transformer: class token, learned positions, pre-norm encoder blocks",
    paper="arXiv 2010.11929",
    config_class=VitConfig,
    build=build,
)
