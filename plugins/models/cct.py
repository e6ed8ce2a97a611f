"""Compact Convolutional Transformer: convolutional tokens, sequence pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from patchline.plugin_api import ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import (
    Probability,
    Size,
    TransformerConfig,
)

if TYPE_CHECKING:
    import torch

_POSITION_STD = 0.2


class CctConfig(TransformerConfig):
    """Size, regularisation, positions."""

    sizes: ClassVar[Mapping[str, Size]] = {  # arXiv 2104.05704, table 1
        "2": Size(128, 2, 2, 128),
        "4": Size(128, 4, 2, 128),
        "6": Size(256, 6, 4, 512),
        "7": Size(256, 7, 4, 512),
        "14": Size(384, 14, 6, 1152),
    }

    size: Literal["2", "4", "6", "7", "14"] = "2"
    """The number of blocks, as in the names CCT-2 to CCT-14, with the paper's dimensions."""

    attention_dropout: Probability = 0.1
    """Dropout of the attention weights."""

    stochastic_depth: Annotated[Probability, Field(json_schema_extra={"sweep": "0..0.3"})] = 0.1
    """Probability of skipping a residual branch in the last block, increasing linearly from 0."""

    positions: Literal["learned", "sine_cosine", "none"] = "learned"
    """Position embedding; convolutional tokens need it less than others."""


def build(config: CctConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network (section 3), which averages the tokens with learned weights."""
    from torch import nn

    from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
    from patchline.pipeline.models.layers.compact_block import CompactBlock
    from patchline.pipeline.models.layers.initialisation import set_truncated_normal
    from patchline.pipeline.models.layers.pooling import SequencePooling
    from patchline.pipeline.models.layers.stochastic_depth import drop_path_rates
    from patchline.plugins.models.encoder_blocks import vision_transformer

    embed_dim, depth, num_heads, mlp_dim = config.dimensions()

    def block(rate: float) -> CompactBlock:
        return CompactBlock(
            MultiHeadSelfAttention(embed_dim, num_heads, config.attention_dropout, bias=False),
            mlp_dim,
            dropout=config.dropout,
            stochastic_depth=rate,
        )

    network = vision_transformer(
        config,
        context,
        lambda: nn.ModuleList(map(block, drop_path_rates(config.stochastic_depth, depth))),
        lambda: SequencePooling(embed_dim),
        positions=config.positions,
        position_std=_POSITION_STD,
        norm=nn.LayerNorm,
    )
    for part in (network.blocks, network.pooling):
        part.apply(set_truncated_normal)
    return network


plugin = ModelPlugin(
    summary="Compact Convolutional Transformer: convolutional tokens, sequence pooling",
    paper="arXiv 2104.05704",
    config_class=CctConfig,
    build=build,
    patch_embedding="cct",
)
