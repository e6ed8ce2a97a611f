"""Convolution, ReLU and max-pooling, once or several times."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

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
_WANTED_GRID = 8
Grid = tuple[int, int]


class Layers(NamedTuple):
    """How many layers there are, and the side of their convolutions."""

    num_layers: int
    kernel_size: int


class CctTokenizerConfig(PluginConfig):
    """Size of the convolutional tokenizer."""

    num_layers: Annotated[int, Field(ge=1, le=8)] | None = None
    """Number of layers, each of which shrinks the image. By default, as many as leave
    about 8 tokens per side: at most 4, or 2 with a kernel_size of 6 or more."""

    kernel_size: Annotated[int, Field(ge=1, le=15)] | None = None
    """Side of the convolutions in pixels, an odd number; from 7 on, they are strided. By
    default 7 for images of 128 pixels or more, else 3."""

    channels: Annotated[int, Field(ge=1, le=4096)] = 64
    """Output channels of all layers but the last, which has the embedding dimension."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose defaults, and check that the image is large enough for all layers."""
        return self.model_copy(update=self.layers(traits.height, traits.width)._asdict())

    def layers(self, height: int, width: int) -> Layers:
        """Return depth and kernel for an image, or defaults if they are not set.

        Raises:
            ConfigError: if the kernel is even or the layers are too many for the image.
        """
        side = min(height, width)
        kernel_size = self.kernel_size or (7 if side >= _LARGE_IMAGE else 3)
        if kernel_size % 2 == 0:
            raise ConfigError(
                f"kernel_size {kernel_size} is even, but the convolution needs a centre. Choose "
                f"{kernel_size - 1} or {kernel_size + 1}."
            )
        num_layers = self.num_layers or _default_num_layers(side, kernel_size)
        grids = layer_grids(height, width, kernel_size, num_layers)
        useful = sum(before != after for before, after in pairwise(grids))
        if useful < num_layers:
            remedy = f"Choose at most {useful}, or raise" if useful else "Raise"
            raise ConfigError(
                f"num_layers {num_layers} is too many for the {height}x{width} image: layer "
                f"{useful + 1} would not make it smaller. {remedy} data.image_size."
            )
        return Layers(num_layers, kernel_size)


def conv_stride(kernel_size: int) -> int:
    """Return the published stride of a convolution, in pixels."""
    return max(1, kernel_size // 2 - 1)


def conv_padding(kernel_size: int) -> int:
    """Return the published padding of a convolution, in pixels."""
    return max(1, kernel_size // 2)


def layer_grids(height: int, width: int, kernel_size: int, num_layers: int) -> list[Grid]:
    """Return the grid before the first layer and after each."""

    def shrunk(side: int) -> int:
        padded = side + 2 * conv_padding(kernel_size)
        convolved = (padded - kernel_size) // conv_stride(kernel_size) + 1
        return (convolved - 1) // 2 + 1

    grids = [(height, width)]
    for _ in range(num_layers):
        rows, columns = grids[-1]
        grids.append((shrunk(rows), shrunk(columns)))
    return grids


def _default_num_layers(side: int, kernel_size: int) -> int:
    stride = conv_stride(kernel_size)
    most = 4 if stride == 1 else 2
    wanted = round(math.log(max(1.0, side / _WANTED_GRID), 2 * stride))
    return max(1, min(wanted, most))


def build(config: CctTokenizerConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer: convolve, rectify and pool in each step."""
    from torch import nn

    from patchline.plugins.patch_embeddings.feature_map import FeatureMapEmbedding

    num_layers, kernel_size = config.layers(context.height, context.width)
    widths = (context.channels, *[config.channels] * (num_layers - 1), context.embed_dim)
    steps: list[nn.Module] = []
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(
            before,
            after,
            kernel_size,
            stride=conv_stride(kernel_size),
            padding=conv_padding(kernel_size),
            bias=False,
        )
        nn.init.kaiming_normal_(convolution.weight)
        steps += [convolution, nn.ReLU(), nn.MaxPool2d(kernel_size=3, stride=2, padding=1)]
    grid = layer_grids(context.height, context.width, kernel_size, num_layers)[-1]
    return FeatureMapEmbedding(grid, nn.Sequential(*steps))


plugin = PatchEmbeddingPlugin(
    summary="Convolution, ReLU and max-pooling, once or several times",
    paper="arXiv 2104.05704, section 3.2",
    config_class=CctTokenizerConfig,
    build=build,
)
