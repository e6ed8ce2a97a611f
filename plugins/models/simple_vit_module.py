"""The network of the simple ViT (arXiv 2205.01580, section 3).

Shapes: B batch, C channels, H height, W width, N patches, V visible ones, D embedding, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.encoder_block import LAYER_NORM_EPSILON, EncoderBlock
from patchline.pipeline.layers.head import LinearHead
from patchline.pipeline.layers.initialisation import xavier
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import AveragePooling
from patchline.pipeline.layers.sine_cosine_positions import SineCosinePositionEmbedding
from patchline.pipeline.layers.stochastic_depth import drop_path_rates
from patchline.plugin_api import ModelContext, PatchTokens

if TYPE_CHECKING:
    from patchline.plugins.models.simple_vit import SimpleVitConfig


class SimpleVisionTransformer(nn.Module):
    """Classify an image by the average of its patches: `images_BCHW -> logits_BK`."""

    def __init__(self, config: SimpleVitConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, depth, num_heads, mlp_dim = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        self.position_embedding = SineCosinePositionEmbedding(grid, embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadSelfAttention(embed_dim, num_heads, config.attention_dropout),
                mlp_dim,
                dropout=config.dropout,
                stochastic_depth=rate,
            )
            for rate in drop_path_rates(config.stochastic_depth, depth)
        )
        self.blocks.apply(xavier)
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.pooling = AveragePooling()
        self.head = LinearHead(embed_dim, context.num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        logits_BK: torch.Tensor = self.head(self.pooling(self.encode(images_BCHW)))
        return logits_BK

    def encode(
        self, images_BCHW: torch.Tensor, visible_BV: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the tokens after the last norm; see `patchline.plugin_api.Encoder`."""
        patches: PatchTokens = self.patch_embedding(images_BCHW)
        tokens_BND = self.position_embedding(patches.tokens_BND, patches.grid)
        tokens_BND = self.patch_dropout(self.dropout(tokens_BND), visible_BV)
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND
