"""Tokens from a small convolutional network with a whitened first layer (arXiv 2404.00498).

Shapes: B batch, C channels, H height, W width, N patches, D embedding, F filters; h, w the grid.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from pipeline.plugin_api import PatchEmbeddingContext, PatchTokens
from plugins.patch_embeddings.feature_map import tokens_of

_KERNEL = 2
_EPSILON = 0.05
"""Added to the variance of each component. In JPEG files the faintest half of the components, with
variances of 1e-4 to 5e-3, is what coding has left of the color; whitened fully, it is noise."""
_FEWEST_CHANNELS = 8
_FEW_STAGES = 2


class WhitenedStem(nn.Module):
    """Whiten, then convolve and pool: `images_BCHW -> tokens_BND`.

    The first convolution is not learned. Its filters are the principal components of the training
    images' 2x2 patches, each divided by its standard deviation, and their negatives, so that the
    layers above begin with decorrelated inputs of the same scale.
    """

    def __init__(
        self,
        num_halvings: int,
        context: PatchEmbeddingContext,
        width_factor: float = 1.0,
        *,
        early_pooling: bool = False,
    ) -> None:
        super().__init__()
        side = context.channels * _KERNEL**2
        self.whitening: torch.Tensor
        self.register_buffer("whitening", _opposite_pairs(torch.eye(side), context.channels))
        self.activation = nn.GELU()
        if early_pooling:
            widths = early_widths(num_halvings, context.embed_dim, width_factor)
            layers = _early_pooled(2 * side, widths)
        else:
            widths = stage_widths(num_halvings, context.embed_dim, width_factor)
            layers = _late_pooled(2 * side, widths)
        self.stages = nn.Sequential(*layers)
        self.to(memory_format=torch.channels_last)
        self.grid = (
            (context.height - 1) >> num_halvings,
            (context.width - 1) >> num_halvings,
        )

    @torch.no_grad()
    def initialise_from(self, images_BCHW: torch.Tensor) -> None:
        """Take the filters of the first convolution from normalised training images."""
        channels = images_BCHW.shape[1]
        patches_NF = _patches(images_BCHW).double()
        covariance_FF = patches_NF.T @ patches_NF / len(patches_NF)
        variances_F, components_FF = torch.linalg.eigh(covariance_FF)
        filters_FF = (components_FF / (variances_F + _EPSILON).sqrt()).T.flip(0)
        self.whitening.copy_(_opposite_pairs(filters_FF, channels))

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)
        whitened_BFhw = functional.conv2d(images_BCHW, self.whitening)
        features_BDhw = self.stages(self.activation(whitened_BFhw))
        return tokens_of(features_BDhw)


def stage_widths(num_halvings: int, embed_dim: int, factor: float = 1.0) -> tuple[int, ...]:
    """Return the channels at each resolution: 48, 96, 128 for D = 128 and two halvings.

    The factor multiplies all but the last one, which is the embedding dimension.
    """
    widths = [embed_dim]
    for halving in range(num_halvings):
        share = 0.75 * factor / 2**halving
        narrower = round(embed_dim * share / _FEWEST_CHANNELS) * _FEWEST_CHANNELS
        widths.append(max(_FEWEST_CHANNELS, narrower))
    return tuple(reversed(widths))


def early_widths(num_halvings: int, embed_dim: int, factor: float = 1.0) -> tuple[int, ...]:
    """Return the channels of each stage with early pooling: 64, 256, 256 for D = 256 and three.

    The last two stages (of two, the last one) have the embedding dimension; before them it is a
    quarter, an eighth, and so on. The factor multiplies all but the last stage.
    """
    widths = [embed_dim]
    for stage in range(1, num_halvings):
        whole = stage == 1 and num_halvings > _FEW_STAGES
        share = factor * (1.0 if whole else 0.5 ** max(2, stage))
        narrower = round(embed_dim * share / _FEWEST_CHANNELS) * _FEWEST_CHANNELS
        widths.append(max(_FEWEST_CHANNELS, narrower))
    return tuple(reversed(widths))


def _late_pooled(channels: int, widths: tuple[int, ...]) -> list[nn.Module]:
    """Return convolutions at the full size, then halve, convolve and widen for each width."""
    layers: list[nn.Module] = [_convolution(channels, widths[0])]
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.MaxPool2d(2))
        if index + 2 < len(widths):
            layers.append(_convolution(before, before))
        layers.append(_convolution(before, after))
    return layers


def _early_pooled(channels: int, widths: tuple[int, ...]) -> list[nn.Module]:
    """Return two convolutions for each width, the first halved before norm and activation."""
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, *widths)):
        layers += [_convolution(before, after, nn.MaxPool2d(2)), _convolution(after, after)]
    return layers


def _patches(images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return all overlapping 2x2 patches as rows."""
    patches_BChwkk = images_BCHW.unfold(2, _KERNEL, 1).unfold(3, _KERNEL, 1)
    return patches_BChwkk.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)


def _opposite_pairs(filters_FF: torch.Tensor, channels: int) -> torch.Tensor:
    """Return filters and their negatives as kernels, so that a GELU loses neither sign."""
    kernels = filters_FF.reshape(-1, channels, _KERNEL, _KERNEL)
    return torch.cat([kernels, -kernels])


def _convolution(channels: int, width: int, pooling: nn.Module | None = None) -> nn.Module:
    """Convolve, pool, normalise, activate; half of the filters begin as copies of a channel."""
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(convolution.weight[: min(channels, width // 2)])
    pooled = [] if pooling is None else [pooling]
    return nn.Sequential(convolution, *pooled, nn.BatchNorm2d(width), nn.GELU())
