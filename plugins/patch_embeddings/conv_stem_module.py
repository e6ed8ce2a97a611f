"""Patches by a stack of small convolutions (arXiv 2106.14881, the convolutional stem of ViT_C).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.feature_map import tokens_of

_FEWEST_CHANNELS = 8


class ConvStem(nn.Module):
    """Halve with 3x3 convolutions, then project each position: `images_BCHW -> tokens_BND`.

    The widths double up to D, the rule of the paper's 1 and 4 GF models: 24, 48, 96, 192 for D =
    192. Its 18 GF model, with other widths and two more convolutions, is not built here.
    """

    def __init__(
        self, patch_size: int, norm: Literal["batch", "group"], context: PatchEmbeddingContext
    ) -> None:
        super().__init__()
        self.grid = (context.height // patch_size, context.width // patch_size)
        widths = stem_widths(patch_size, context.embed_dim)
        self.stem = nn.Sequential(
            *(
                layer
                for before, after in pairwise((context.channels, *widths))
                for layer in (_halving(before, after), _norm(norm, after), nn.ReLU())
            )
        )
        self.projection = nn.Conv2d(widths[-1], context.embed_dim, kernel_size=1)
        nn.init.trunc_normal_(self.projection.weight, std=widths[-1] ** -0.5)
        nn.init.zeros_(torch.as_tensor(self.projection.bias))

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        features_BDhw = self.projection(self.stem(images_BCHW))
        return tokens_of(features_BDhw)


def stem_widths(patch_size: int, embed_dim: int) -> tuple[int, ...]:
    """Return the output channels of the log2(patch_size) convolutions, at least 8 each."""
    num_layers = patch_size.bit_length() - 1
    return tuple(
        max(_FEWEST_CHANNELS, embed_dim >> halvings) for halvings in reversed(range(num_layers))
    )


def _halving(channels: int, width: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, width, kernel_size=3, stride=2, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _norm(norm: Literal["batch", "group"], channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(1, channels)
