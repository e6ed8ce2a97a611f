"""A whitened 2x2 convolution, then 3x3 convolutions and max-pooling: learns fast.

Settings and plugin; the layer is in `patchline.plugins.patch_embeddings.whitened_module`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from patchline.plugin_api import (
    ConfigError,
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PluginConfig,
)

if TYPE_CHECKING:
    import torch

_LARGE_IMAGE = 128
_SMALLEST_SIDE = 5


class WhitenedConfig(PluginConfig):
    """How often the image is halved, and the number of filters."""

    num_halvings: Annotated[int, Field(ge=1, le=8)] | None = None
    """Number of max-pooling layers, each of which halves the image. By default, as many as leave
    about 8 tokens per side, or 14 for images of 128 pixels or more."""

    width_factor: Annotated[float, Field(gt=0, le=16)] = 1.0
    """Factor of the filters before the last pooling; with 1 there are 48 and 96 for an embedding
    dimension of 128 and two poolings."""

    early_pooling: bool = False
    """Pool after the first convolution of each stage, before its norm and activation, as in arXiv
    2404.00498: two convolutions a stage, of which the second sees a quarter of the positions, so
    there can be more filters: 64, 256 and 256 for an embedding dimension of 256 and three poolings.
    Learns most from the same computation on images of about 32 pixels."""

    mirror_equivariant: bool = False
    """Mirror every filter (arXiv 1602.07576): mirroring an image reverses the columns of tokens and
    changes nothing else, so with pooling average and positions none the prediction is the same.
    Half the parameters for the same computation. For images whose mirror image shows the same
    class."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Fill in the number of halvings, and check that the image is large enough."""
        return self.model_copy(update={"num_halvings": self.halvings(traits.height, traits.width)})

    def halvings(self, height: int, width: int) -> int:
        """Return the number of halvings for an image, or a default if it is not set.

        Raises:
            ConfigError: if the image is too small for that many.
        """
        side = min(height, width)
        most = ((side - 1) // 2).bit_length() - 1
        if most < 1:
            raise ConfigError(
                f"model.patch_embedding whitened cannot read a {height}x{width} image: it applies "
                "a convolution and at least one max-pooling layer. Set data.image_size to at "
                f"least {_SMALLEST_SIDE}."
            )
        grid = 14 if side >= _LARGE_IMAGE else 8
        wanted = max(1, round(math.log2(side / grid)))
        chosen = self.num_halvings or min(wanted, most)
        if chosen > most:
            raise ConfigError(
                f"num_halvings {chosen} is too many for the {height}x{width} image. Choose at most "
                f"{most}, or raise data.image_size."
            )
        return chosen


def build(config: WhitenedConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from patchline.plugins.patch_embeddings.whitened_module import WhitenedStem

    halvings = config.halvings(context.height, context.width)
    if config.mirror_equivariant and context.embed_dim % 2:
        raise ConfigError(
            f"model.embed_dim {context.embed_dim} is odd, but mirror_equivariant needs pairs of "
            f"features. Set model.embed_dim to {context.embed_dim + 1}, or mirror_equivariant to "
            "false."
        )
    return WhitenedStem(
        halvings,
        context,
        config.width_factor,
        early_pooling=config.early_pooling,
        mirror_equivariant=config.mirror_equivariant,
    )


plugin = PatchEmbeddingPlugin(
    summary="A whitened 2x2 convolution, then 3x3 convolutions and max-pooling: learns fast",
    paper="arXiv 2404.00498, section 3; as a tokenizer arXiv 2010.11929, section 3.1 (hybrid)",
    config_class=WhitenedConfig,
    build=build,
)
