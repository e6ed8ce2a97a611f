"""A ViT with rotary positions: attention depends on the distance of two patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

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
    from patchline.pipeline.models.layers.class_token import ClassToken
    from patchline.pipeline.models.layers.head import LinearHead
    from patchline.pipeline.models.layers.normalisation import NORMS
    from patchline.pipeline.models.layers.pooling import ClassTokenPooling
    from patchline.pipeline.models.layers.positions import Positions, position_embedding
    from patchline.pipeline.models.layers.registers import RegisterTokens
    from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention
    from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
    from patchline.plugins.models.encoder_blocks import encoder_blocks

    embed_dim, _, num_heads, _ = config.dimensions()
    patch_embedding = context.patch_embedding(embed_dim)
    grid: Any = patch_embedding.grid
    positions: Positions = "learned" if config.absolute_positions else "none"
    num_registers = config.num_registers
    return VisionTransformer(
        patch_embedding,
        class_token=ClassToken(embed_dim),
        position_embedding=position_embedding(positions, grid, embed_dim, prefix_tokens=1),
        registers=RegisterTokens(num_registers, embed_dim) if num_registers else None,
        blocks=encoder_blocks(
            config,
            lambda: RotarySelfAttention(
                embed_dim,
                num_heads,
                config.attention_dropout,
                qk_norm=config.qk_norm,
                learned=config.frequencies == "mixed",
            ),
        ),
        norm=NORMS[config.norm](embed_dim, config.norm_epsilon),
        pooling=ClassTokenPooling(),
        head=LinearHead(embed_dim, context.num_classes),
        dropout=config.dropout,
        patch_dropout=config.patch_dropout,
        rotary=True,
    )


plugin = ModelPlugin(
    summary="A ViT with rotary positions: attention depends on the distance of two patches",
    paper="arXiv 2403.13298",
    config_class=RopeVitConfig,
    build=build,
)
