"""Compact Convolutional Transformer: convolutional tokens, sequence pooling.

Settings and plugin; the network is in `patchline.plugins.models.cct_module`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from patchline.plugin_api import DataTraits, ModelContext, ModelPlugin
from patchline.plugins.models.transformer_settings import (
    Probability,
    Size,
    TransformerConfig,
    check_sine_cosine,
)

if TYPE_CHECKING:
    import torch


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

    stochastic_depth: Probability = 0.1
    """Probability of skipping a residual branch in the last block, increasing linearly from 0."""

    positions: Literal["learned", "sine_cosine", "none"] = "learned"
    """Position embedding; convolutional tokens need it less than others."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the dimensions, and check that the positions fit them."""
        if self.positions == "sine_cosine":
            check_sine_cosine(self.dimensions().embed_dim)
        return super().resolved_for(traits)


def build(config: CctConfig, context: ModelContext) -> torch.nn.Module:
    """Build the network."""
    from patchline.plugins.models.cct_module import CompactTransformer

    return CompactTransformer(config, context)


plugin = ModelPlugin(
    summary="Compact Convolutional Transformer: convolutional tokens, sequence pooling",
    paper="arXiv 2104.05704",
    config_class=CctConfig,
    build=build,
    patch_embedding="cct",
)
