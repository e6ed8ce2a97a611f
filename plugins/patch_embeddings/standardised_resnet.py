"""The first stages of a ResNet, as in arXiv 2010.11929, section 3.1, "Hybrid Architecture".

As there, group norm replaces batch norm and the convolutions' weights are standardised (arXiv
1912.11370). The ResNet is torchvision's, with the stride in the 3x3 convolution of a bottleneck.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import resnet

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


def resnet_up_to(backbone: str, stage: int, channels: int) -> tuple[nn.Sequential, int]:
    """Return stem and stages of a ResNet for images of these channels, and the channels after it.

    Args:
        backbone: its name in torchvision, such as resnet18.
        stage: the last of the stages, from 1 to 4.
        channels: C, the number of channels of the images.
    """
    with torch.device("meta"):  # only the order of the layers: the later stages take no memory
        network = getattr(resnet, backbone)(norm_layer=partial(nn.GroupNorm, NUM_GROUPS))
        network.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    stages = [getattr(network, f"layer{number}") for number in range(1, stage + 1)]
    features = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool, *stages)
    _fill_in_layers(features)
    *_, last = (each for each in features.modules() if isinstance(each, nn.Conv2d))
    return features, last.out_channels


def _fill_in_layers(module: nn.Module) -> None:
    """Replace layers on the meta device by real ones."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            setattr(module, name, _standardize(child))
        elif isinstance(child, nn.GroupNorm):
            setattr(module, name, nn.GroupNorm(child.num_groups, child.num_channels))
        else:
            _fill_in_layers(child)


def _standardize(plain: nn.Conv2d) -> StandardisedConv2d:
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
