"""Two 3x3 convolutions before the patches: the smallest patch embedding worth having.

Try it:  patchline run --plugin examples/my_stem.py --model.patch-embedding.name my_stem
"""

import torch
from torch import nn

from patchline.plugin_api import (
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
    PluginConfig,
)


class MyStemConfig(PluginConfig):
    """Settings; each field's text below becomes its help on the command line."""

    width: int = 32
    """Channels of the first convolution."""


class MyStem(nn.Module):
    """Halve the image twice: `images_BCHW -> PatchTokens` on a grid of a quarter of the side."""

    def __init__(self, config: MyStemConfig, context: PatchEmbeddingContext) -> None:
        super().__init__()
        self.grid = (-(-context.height // 4), -(-context.width // 4))
        self.stem = nn.Sequential(
            nn.Conv2d(context.channels, config.width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(config.width, context.embed_dim, kernel_size=3, stride=2, padding=1),
        )

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token for each place of the grid, row by row."""
        features_BDhw = self.stem(images_BCHW)
        return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), self.grid)


plugin = PatchEmbeddingPlugin(
    summary="Two strided 3x3 convolutions",
    paper="after arXiv 2106.14881",
    config_class=MyStemConfig,
    build=MyStem,
)
