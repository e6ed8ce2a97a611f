"""Tokens from a ResNet's feature map (arXiv 2010.11929, section 3.1, "Hybrid Architecture").

As there, group norm replaces batch norm and the convolutions' weights are standardised (arXiv
1912.11370). The ResNet is torchvision's, with the stride in the 3x3 convolution of a bottleneck.

Shapes: B batch, C channels, H height, W width, N patches, D embedding; h, w the grid.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import resnet

from patchline.plugin_api import PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.feature_map import tokens_of
from patchline.plugins.patch_embeddings.hybrid import Backbone, stage_grids

NUM_GROUPS = 32
_EPSILON = 1e-10


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weights have mean 0 and variance 1 for each output channel."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  the name in nn.Conv2d
        """Convolve with the standardised weights."""
        weight = self.standardised_weight()
        return functional.conv2d(input, weight, self.bias, self.stride, self.padding)

    def standardised_weight(self) -> torch.Tensor:
        """Return the standardised weights, in the shape of the stored ones."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        return (self.weight - mean) * torch.rsqrt(variance + _EPSILON)


class HybridPatchEmbedding(nn.Module):
    """Project each position of a ResNet's feature map: `images_BCHW -> tokens_BND`."""

    def __init__(self, backbone: Backbone, stage: int, context: PatchEmbeddingContext) -> None:
        super().__init__()
        self.grid = stage_grids(context.height, context.width)[stage]
        self.features = _resnet_up_to(backbone, stage, context.channels)
        width = _channels_out(self.features)
        self.projection = nn.Conv2d(width, context.embed_dim, kernel_size=1)
        nn.init.trunc_normal_(self.projection.weight, std=width**-0.5)
        nn.init.zeros_(torch.as_tensor(self.projection.bias))

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        features_BDhw = self.projection(self.features(images_BCHW))
        return tokens_of(features_BDhw)


def _resnet_up_to(backbone: Backbone, stage: int, channels: int) -> nn.Sequential:
    """Return stem and stages of a ResNet, for images with any number of channels."""
    with torch.device("meta"):  # only the order of the layers: the later stages take no memory
        network = getattr(resnet, backbone)(norm_layer=partial(nn.GroupNorm, NUM_GROUPS))
        network.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    stages = [getattr(network, f"layer{number}") for number in range(1, stage + 1)]
    features = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool, *stages)
    _fill_in_layers(features)
    return features


def _fill_in_layers(module: nn.Module) -> None:
    """Replace layers on the meta device by real ones."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            setattr(module, name, _standardised(child))
        elif isinstance(child, nn.GroupNorm):
            setattr(module, name, nn.GroupNorm(child.num_groups, child.num_channels))
        else:
            _fill_in_layers(child)


def _standardised(plain: nn.Conv2d) -> StandardisedConv2d:
    convolution = StandardisedConv2d(
        plain.in_channels,
        plain.out_channels,
        plain.kernel_size,  # type: ignore[arg-type]  # annotated as a tuple of any length
        plain.stride,  # type: ignore[arg-type]  # the same
        plain.padding,  # type: ignore[arg-type]  # the same
        bias=False,
    )
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _channels_out(features: nn.Module) -> int:
    return [m.out_channels for m in features.modules() if isinstance(m, nn.Conv2d)][-1]
