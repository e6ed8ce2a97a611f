"""The tokenizer of the Compact Convolutional Transformer (arXiv 2104.05704, section 3.2).

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.cct import Layers, conv_padding, conv_stride, layer_grids
from patchline.plugins.patch_embeddings.feature_map import tokens_of


class CctTokenizer(nn.Module):
    """Convolve, rectify and pool in each layer: `images_BCHW -> tokens_BND`."""

    def __init__(self, layers: Layers, channels: int, context: PatchEmbeddingContext) -> None:
        super().__init__()
        num_layers, kernel_size = layers
        self.grid = layer_grids(context.height, context.width, kernel_size, num_layers)[-1]
        widths = (context.channels, *[channels] * (num_layers - 1), context.embed_dim)
        self.layers = nn.Sequential(
            *(
                layer
                for before, after in pairwise(widths)
                for layer in (
                    _convolution(before, after, kernel_size),
                    nn.ReLU(),
                    nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
                )
            )
        )

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        features_BDhw = self.layers(images_BCHW)
        return tokens_of(features_BDhw)


def _convolution(channels: int, width: int, kernel_size: int) -> nn.Conv2d:
    convolution = nn.Conv2d(
        channels,
        width,
        kernel_size,
        stride=conv_stride(kernel_size),
        padding=conv_padding(kernel_size),
        bias=False,
    )
    nn.init.kaiming_normal_(convolution.weight)
    return convolution
