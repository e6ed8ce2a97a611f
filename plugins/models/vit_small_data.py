"""A ViT for small data sets: shifted patches and locality self-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

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
    from patchline.pipeline.models.layers.initialisation import set_truncated_normal
    from patchline.pipeline.models.layers.locality_attention import LocalitySelfAttention
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.plugins.models.encoder_blocks import plain_blocks, vision_transformer

    embed_dim, _, num_heads, _ = config.dimensions()

    def attention() -> LocalitySelfAttention:
        return LocalitySelfAttention(embed_dim, num_heads, config.attention_dropout)

    return vision_transformer(
        config,
        context,
        lambda: plain_blocks(config, attention).apply(set_truncated_normal),
        ClassTokenPooling,
        class_token=True,
    )


plugin = ModelPlugin(
    summary="A ViT for small data sets: shifted patches, locality self-attention",
    paper="arXiv 2112.13492",
    config_class=VitSmallDataConfig,
    build=build,
    patch_embedding="shifted",
)
