"""The network of the ViT for small data sets (arXiv 2112.13492, section 3).

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes, V visible patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.class_token import ClassToken
from patchline.pipeline.layers.encoder_block import LAYER_NORM_EPSILON, EncoderBlock
from patchline.pipeline.layers.head import LinearHead
from patchline.pipeline.layers.initialisation import truncated_normal
from patchline.pipeline.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.layers.locality_attention import LocalitySelfAttention
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import ClassTokenPooling
from patchline.pipeline.layers.stochastic_depth import drop_path_rates
from patchline.plugin_api import ModelContext, PatchTokens

if TYPE_CHECKING:
    from patchline.plugins.models.vit_small_data import VitSmallDataConfig


class SmallDataVisionTransformer(nn.Module):
    """A ViT whose tokens attend to each other, never to themselves: `images_BCHW -> logits_BK`."""

    def __init__(self, config: VitSmallDataConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, depth, num_heads, mlp_dim = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        self.class_token = ClassToken(embed_dim)
        self.position_embedding = LearnedPositionEmbedding(grid, embed_dim, prefix_tokens=1)
        self.dropout = nn.Dropout(config.dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout, prefix_tokens=1)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                LocalitySelfAttention(embed_dim, num_heads, config.attention_dropout),
                mlp_dim,
                dropout=config.dropout,
                stochastic_depth=rate,
            )
            for rate in drop_path_rates(config.stochastic_depth, depth)
        )
        self.blocks.apply(truncated_normal)
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.pooling = ClassTokenPooling()
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
        tokens_BND = self.class_token(patches.tokens_BND)
        tokens_BND = self.dropout(self.position_embedding(tokens_BND, patches.grid))
        tokens_BND = self.patch_dropout(tokens_BND, visible_BV)
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND
