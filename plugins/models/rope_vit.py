"""A ViT with rotary positions: attention depends on the distance of two patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from patchline.plugin_api import ConfigError, DataTraits, ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import BlockConfig

if TYPE_CHECKING:
    import torch


class RopeVitConfig(BlockConfig):
    """Size, regularisation, kind of rotation."""

    size: Literal["micro", "mini", "ti", "s", "b", "l"] = "micro"
    """Dimensions: micro and mini for small images and few cores; s, b, l as in the paper."""

    frequencies: Literal["mixed", "axial"] = "mixed"
    """mixed: learned, in any direction, the paper's choice; axial: fixed, along x and y."""

    num_registers: Annotated[int, Field(ge=0, le=64)] = 0
    """Register tokens beside the class token (arXiv 2309.16588), such as 4; they have no
    position."""

    absolute_positions: bool = False
    """Add learned positions to the tokens as well, as the paper's RoPE + APE."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the dimensions, and check that the head size is a multiple of 4."""
        size = self.dimensions()
        resolved = super().resolved_for(traits)
        head_dim = size.embed_dim // size.num_heads
        if head_dim % 4:
            raise ConfigError(
                f"model.embed_dim {size.embed_dim} and model.num_heads {size.num_heads} give heads "
                f"of dimension {head_dim}, but two-dimensional rotary positions need a multiple of "
                "4. Change one of the two settings."
            )
        return resolved


def build(config: RopeVitConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3), which rotates queries and keys by position."""
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention
    from patchline.plugins.models.encoder_blocks import encoder_blocks, vision_transformer

    embed_dim, _, num_heads, _ = config.dimensions()

    def attention() -> RotarySelfAttention:
        return RotarySelfAttention(
            embed_dim,
            num_heads,
            config.attention_dropout,
            qk_norm=config.qk_norm,
            learned=config.frequencies == "mixed",
        )

    return vision_transformer(
        config,
        context,
        lambda: encoder_blocks(config, attention),
        ClassTokenPooling,
        positions="learned" if config.absolute_positions else "none",
        class_token=True,
        num_registers=config.num_registers,
        rotary=True,
    )


plugin = ModelPlugin(
    summary="A ViT with rotary positions: attention depends on the distance of two patches",
    paper="arXiv 2403.13298",
    config_class=RopeVitConfig,
    build=build,
)
