"""Tokens from a small convolutional network with a whitened first layer (arXiv 2404.00498).

Shapes: B batch, C channels, H height, W width, N patches, D embedding, F filters; h, w the grid.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.feature_map import tokens_of
from patchline.plugins.patch_embeddings.mirrored_layers import MirroredLayers, without_order

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

    If it is mirror-equivariant, mirroring the image reverses the columns of tokens and changes
    nothing else.
    """

    def __init__(
        self,
        num_halvings: int,
        context: PatchEmbeddingContext,
        width_factor: float = 1.0,
        *,
        early_pooling: bool = False,
        mirror_equivariant: bool = False,
    ) -> None:
        super().__init__()
        self.mirror_equivariant = mirror_equivariant
        side = context.channels * _KERNEL**2
        self.whitening: torch.Tensor
        filters_FF = torch.cat(self._bases(context.channels), dim=1).T.float()
        self.register_buffer("whitening", _opposite_pairs(filters_FF, context.channels))
        self.activation = nn.GELU()
        layers = (
            MirroredLayers(_swap_mirrored(side)) if mirror_equivariant else _PlainLayers(2 * side)
        )
        if early_pooling:
            stages = _early_pooled(
                layers, early_widths(num_halvings, context.embed_dim, width_factor)
            )
        else:
            stages = _late_pooled(
                layers, stage_widths(num_halvings, context.embed_dim, width_factor)
            )
        self.stages = nn.Sequential(*stages)
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
        bases = [basis_FS.to(covariance_FF) for basis_FS in self._bases(channels)]
        filters_FF = torch.cat(
            [_compute_whitening_filters(covariance_FF, basis_FS) for basis_FS in bases]
        )
        self.whitening.copy_(_opposite_pairs(filters_FF, channels))

    def _bases(self, channels: int) -> list[torch.Tensor]:
        """Return bases of the spaces of patches whose components are whitened together."""
        if self.mirror_equivariant:
            return _mirror_bases(channels)
        return [torch.eye(channels * _KERNEL**2, dtype=torch.float64)]

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)
        whitened_BFhw = functional.conv2d(images_BCHW, self.whitening)
        features_BDhw = self.stages(self.activation(whitened_BFhw))
        if self.mirror_equivariant:
            features_BDhw = without_order(features_BDhw)
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


class _Layers(Protocol):
    """Builds layers one after the other, each for the channels of the layer before."""

    def convolution(self, width: int, *, pools: bool = False) -> nn.Module:
        """Convolve, pool if asked to, normalise, activate."""

    def pooling(self) -> nn.Module:
        """Halve the map."""


class _PlainLayers:
    """Layers with independent filters, of which half begin as copies of a channel."""

    def __init__(self, channels: int) -> None:
        self._channels = channels

    def convolution(self, width: int, *, pools: bool = False) -> nn.Module:
        convolution = nn.Conv2d(self._channels, width, kernel_size=3, padding=1, bias=False)
        with torch.no_grad():
            nn.init.dirac_(convolution.weight[: min(self._channels, width // 2)])
        self._channels = width
        pooling = [self.pooling()] if pools else []
        return nn.Sequential(convolution, *pooling, nn.BatchNorm2d(width), nn.GELU())

    def pooling(self) -> nn.Module:
        return nn.MaxPool2d(2)


def _late_pooled(layers: _Layers, widths: tuple[int, ...]) -> list[nn.Module]:
    """Return convolutions at the full size, then halve, convolve and widen for each width."""
    stages = [layers.convolution(widths[0])]
    for index, (before, after) in enumerate(pairwise(widths)):
        stages.append(layers.pooling())
        if index + 2 < len(widths):
            stages.append(layers.convolution(before))
        stages.append(layers.convolution(after))
    return stages


def _early_pooled(layers: _Layers, widths: tuple[int, ...]) -> list[nn.Module]:
    """Return two convolutions for each width, the first halved before norm and activation."""
    stages: list[nn.Module] = []
    for width in widths:
        stages += [layers.convolution(width, pools=True), layers.convolution(width)]
    return stages


def _patches(images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return all overlapping 2x2 patches as rows."""
    patches_BChwkk = images_BCHW.unfold(2, _KERNEL, 1).unfold(3, _KERNEL, 1)
    return patches_BChwkk.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)


def _compute_whitening_filters(covariance_FF: torch.Tensor, basis_FS: torch.Tensor) -> torch.Tensor:
    """Return principal components within a space of patches, each over its standard deviation."""
    variances_S, components_SS = torch.linalg.eigh(basis_FS.T @ covariance_FF @ basis_FS)
    scaled_FS: torch.Tensor = basis_FS @ components_SS / (variances_S + _EPSILON).sqrt()
    return scaled_FS.T.flip(0)


def _mirror_bases(channels: int) -> list[torch.Tensor]:
    """Return bases of the patches that mirroring leaves as they are, and of those it negates."""
    pixels = torch.eye(channels * _KERNEL**2, dtype=torch.float64)
    left, right = pixels.view(-1, _KERNEL, len(pixels)).unbind(1)
    return [(left + right).T * 0.5**0.5, (left - right).T * 0.5**0.5]


def _swap_mirrored(side: int) -> torch.Tensor:
    """Return what mirroring does to the whitened channels: it negates half of the components."""
    positive, negative = torch.arange(2 * side).chunk(2)
    kept = side // 2
    return torch.cat((positive[:kept], negative[kept:], negative[:kept], positive[kept:]))


def _opposite_pairs(filters_FF: torch.Tensor, channels: int) -> torch.Tensor:
    """Return filters and their negatives as kernels, so that a GELU loses neither sign."""
    kernels = filters_FF.reshape(-1, channels, _KERNEL, _KERNEL)
    return torch.cat([kernels, -kernels])
