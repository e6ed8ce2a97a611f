"""Tokens from a feature map: each place of the grid becomes a token.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding; h, w the grid.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.plugin_api import PatchTokens


class FeatureMapEmbedding(nn.Module):
    """Convolve, and take each place of the map as a token: `images_BCHW -> tokens_BND`.

    Args:
        grid: the rows and columns of the map.
        projection: maps the features, or the images if there are none, to D channels.
        features: the module that is applied to the images first; None for none.
        norm: normalises the tokens; None for none.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        projection: nn.Module,
        features: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.features = features or nn.Identity()
        self.projection = projection
        self.norm = norm or nn.Identity()

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token per grid position, row by row."""
        features_BDhw = self.projection(self.features(images_BCHW))
        tokens = tokens_of(features_BDhw)
        return tokens._replace(tokens_BND=self.norm(tokens.tokens_BND))


def tokens_of(features_BDhw: torch.Tensor) -> PatchTokens:
    """Return the places of a feature map as tokens, row by row, with their grid."""
    rows, columns = features_BDhw.shape[-2:]
    return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), (rows, columns))


def initialize_projection(projection: nn.Conv2d) -> nn.Conv2d:
    """Set truncated normal weights of variance 1 / fan-in and zero biases; return the layer."""
    fan_in = projection.weight[0].numel()
    nn.init.trunc_normal_(projection.weight, std=fan_in**-0.5)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)
    return projection
