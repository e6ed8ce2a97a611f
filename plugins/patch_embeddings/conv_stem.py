"""A few 3x3 convolutions that halve the image, instead of one large stride."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from patchline.plugin_api import ConfigError, PatchEmbeddingContext, PatchEmbeddingPlugin
from patchline.plugins.patch_embeddings.patch_grid import (
    PatchGridConfig,
    common_divisors,
    nearby_even_size,
    nearest_patch_size,
)

if TYPE_CHECKING:
    import torch

_FEWEST_CHANNELS = 8


class ConvStemConfig(PatchGridConfig):
    """Depth and normalisation of the stem."""

    patch_size: Annotated[int, Field(ge=2, le=512)] | None = None
    """Stride from one token to the next in pixels: a power of two that divides the image, with one
    convolution per halving. By default about 8 tokens per side, at most 16 pixels each."""

    norm: Literal["batch", "group"] = "batch"
    """batch, as published; group normalises each image over all channels and positions,
    independently of the other images in the batch."""

    def patch_size_for(self, height: int, width: int) -> int:
        """Return the power of two for an image, or a default if it is not set.

        Raises:
            ConfigError: if it does not fit the image.
        """
        choices = [p for p in common_divisors(height, width) if p > 1 and p.bit_count() == 1]
        if not choices:
            raise ConfigError(
                f"No power of two divides the {height}x{width} image, and each convolution halves "
                "it. Set data.image_size to an even number, such as "
                f"{nearby_even_size(height, width)}."
            )
        patch_size = self.patch_size or nearest_patch_size(choices, height, width)
        if patch_size not in choices:
            is_power = patch_size.bit_count() == 1
            rule = "does not divide" if is_power else "is not a power of two that divides"
            raise ConfigError(
                f"patch_size {patch_size} {rule} the {height}x{width} image. Choose one of "
                f"{', '.join(map(str, choices))}, or change data.image_size."
            )
        if self.norm == "batch" and height == width == patch_size:
            # A batch of one image would leave one value a channel, which has no variance.
            raise ConfigError(
                f"patch_size {patch_size} makes one token of the {height}x{width} image, too few "
                "for norm batch. Choose a smaller patch_size, or norm group."
            )
        return patch_size


def build(config: ConvStemConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer: halve with 3x3 convolutions, then project each position.

    The widths double up to D, the rule of the paper's 1 and 4 GF models: 24, 48, 96, 192 for D =
    192. Its 18 GF model, with other widths and two more convolutions, is not built here.
    """
    from torch import nn

    from patchline.plugins.patch_embeddings.feature_map import (
        FeatureMapEmbedding,
        initialize_projection,
    )

    patch_size = config.patch_size_for(context.height, context.width)
    widths = stem_widths(patch_size, context.embed_dim)
    stem: list[nn.Module] = []
    for before, after in pairwise((context.channels, *widths)):
        halving = nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(halving.weight, mode="fan_out", nonlinearity="relu")
        norm = nn.BatchNorm2d(after) if config.norm == "batch" else nn.GroupNorm(1, after)
        stem += [halving, norm, nn.ReLU()]
    return FeatureMapEmbedding(
        (context.height // patch_size, context.width // patch_size),
        initialize_projection(nn.Conv2d(widths[-1], context.embed_dim, kernel_size=1)),
        features=nn.Sequential(*stem),
    )


def stem_widths(patch_size: int, embed_dim: int) -> tuple[int, ...]:
    """Return the output channels of the log2(patch_size) convolutions, at least 8 each."""
    num_layers = patch_size.bit_length() - 1
    return tuple(
        max(_FEWEST_CHANNELS, embed_dim >> halvings) for halvings in reversed(range(num_layers))
    )


plugin = PatchEmbeddingPlugin(
    summary="A few 3x3 convolutions that halve the image, instead of one large stride",
    paper="arXiv 2106.14881",
    config_class=ConvStemConfig,
    build=build,
)
