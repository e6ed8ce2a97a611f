"""A ViT with register tokens, which keep artifacts out of the patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

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
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.plugins.models.encoder_blocks import encoder_blocks, vision_transformer

    return vision_transformer(
        config,
        context,
        lambda: encoder_blocks(config),
        ClassTokenPooling,
        class_token=True,
        num_registers=config.num_registers,
        embedding_norm=config.embedding_norm,
    )


plugin = ModelPlugin(
    summary="A ViT with register tokens, which keep artifacts out of the patches",
    paper="arXiv 2309.16588",
    config_class=VitRegistersConfig,
    build=build,
)
