"""The Vision Transformer as published: class token, learned positions, pre-norm blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from patchline.plugin_api import ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import BlockConfig

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


def build(config: VitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3.1, equations 1 to 4)."""
    from patchline.pipeline.models.layers.head import LinearHead, TanhHead
    from patchline.pipeline.models.layers.pooling import (
        AttentionPooling,
        AveragePooling,
        ClassTokenPooling,
    )
    from patchline.plugins.models.encoder_blocks import encoder_blocks, vision_transformer

    embed_dim, _, num_heads, mlp_dim = config.dimensions()

    def pooling() -> torch.nn.Module:
        if config.pooling == "attention":
            return AttentionPooling(
                embed_dim,
                num_heads,
                mlp_dim,
                activation=config.activation,
                norm_epsilon=config.norm_epsilon,
            )
        return AveragePooling() if config.pooling == "average" else ClassTokenPooling()

    return vision_transformer(
        config,
        context,
        lambda: encoder_blocks(config),
        pooling,
        positions=config.positions,
        class_token=config.pooling == "class_token",
        head=TanhHead if config.head == "tanh" else LinearHead,
        embedding_norm=config.embedding_norm,
        test_time_flip=config.test_time_flip,
    )


plugin = ModelPlugin(
    summary="Vision Transformer: class token, learned positions, pre-norm encoder blocks",
    paper="arXiv 2010.11929",
    config_class=VitConfig,
    build=build,
)
