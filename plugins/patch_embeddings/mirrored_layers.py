"""Convolutional layers that treat an image and its mirror image alike (arXiv 1602.07576).

The features come in pairs. The second half of the channels holds what the first half would hold
for the mirror image, mirrored back: mirroring the image mirrors each map and swaps the halves. The
filters of the second half are those of the first, mirrored, so there are half as many parameters;
the computation is that of ordinary layers.

Shapes: B batch, F channels in, D channels out, h, w the map.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class MirroredLayers:
    """Builds layers one after the other, each for the channels of the layer before.

    Args:
        swapped: the channel that takes the place of each channel of the first layer's input when
            the image is mirrored.
    """

    def __init__(self, swapped: torch.Tensor) -> None:
        self._swapped = swapped

    def convolution(self, width: int, *, pools: bool = False) -> nn.Module:
        """Convolve, pool if asked to, normalise, activate; half of the filters copy a channel."""
        convolution = MirroredConvolution(self._swapped, width)
        with torch.no_grad():
            nn.init.dirac_(convolution.weight[: min(len(self._swapped), width // 4)])
        self._swapped = torch.arange(width).roll(width // 2)
        pooling = [self.pooling()] if pools else []
        return nn.Sequential(convolution, *pooling, PairedBatchNorm(width), nn.GELU())

    def pooling(self) -> nn.Module:
        """Halve the map."""
        return SymmetricMaxPool()


class MirroredConvolution(nn.Conv2d):
    """Convolve 3x3 with pairs of mirrored filters: `features_BFhw -> features_BDhw`.

    Args:
        swapped: the channel that takes the place of each input channel when the image is mirrored.
        width: D, the number of output channels, which is even.
    """

    def __init__(self, swapped: torch.Tensor, width: int) -> None:
        channels = len(swapped)
        super().__init__(channels, width // 2, kernel_size=3, padding=1, bias=False)
        self.out_channels = width
        self.swapped: torch.Tensor
        self.register_buffer("swapped", swapped, persistent=False)

    def forward(self, features_BFhw: torch.Tensor) -> torch.Tensor:
        """Return the responses of each filter, then those of each mirrored filter."""
        mirrored = self.weight[:, self.swapped].flip(-1)
        return functional.conv2d(features_BFhw, torch.cat((self.weight, mirrored)), padding=1)


class PairedBatchNorm(nn.Module):
    """Normalise both halves of the channels with the same statistics, scales and shifts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width // 2)

    def forward(self, features_BDhw: torch.Tensor) -> torch.Tensor:
        """Return the normalised features, in the shape given."""
        _, channels, height, width = features_BDhw.shape
        # With the channels last in memory, the halves are neighbouring columns: nothing is copied.
        pairs_BhWD = features_BDhw.permute(0, 2, 3, 1).reshape(-1, height, 2 * width, channels // 2)
        normed_BDhW: torch.Tensor = self.norm(pairs_BhWD.permute(0, 3, 1, 2))
        normed_BhWD = normed_BDhW.permute(0, 2, 3, 1)
        return normed_BhWD.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


class SymmetricMaxPool(nn.Module):
    """Halve the map, rounded down: 2x2 windows, or 3 wide along an odd side, so none is cut off."""

    def forward(self, features_BFhw: torch.Tensor) -> torch.Tensor:
        """Return the largest value of each window."""
        height, width = features_BFhw.shape[-2:]
        return functional.max_pool2d(features_BFhw, (2 + height % 2, 2 + width % 2), stride=2)


def without_order(features_BDhw: torch.Tensor) -> torch.Tensor:
    """Sort each pair: the larger values, then the smaller ones (arXiv 1811.05381, section 4.1).

    What is left of mirroring the image is that the maps are mirrored.
    """
    first, second = features_BDhw.chunk(2, dim=1)
    return torch.cat((torch.maximum(first, second), torch.minimum(first, second)), dim=1)
