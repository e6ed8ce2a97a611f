"""The network of the Vision Transformer (arXiv 2010.11929, section 3.1, equations 1 to 4).

Shapes: B batch, C channels, H height, W width, N patches, D embedding, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pipeline.layers.class_token import ClassToken
from pipeline.layers.encoder_block import LAYER_NORM_EPSILON, EncoderBlock
from pipeline.layers.head import LinearHead, TanhHead
from pipeline.layers.position_embedding import LearnedPositionEmbedding
from pipeline.plugin_api import ModelContext, PatchTokens

if TYPE_CHECKING:
    from plugins.models.vit import VitConfig


_HEADS = {"linear": LinearHead, "tanh": TanhHead}


class VisionTransformer(nn.Module):
    """Classify an image as a sequence of patches: `images_BCHW -> logits_BK`."""

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, depth, num_heads, mlp_dim = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        rows, columns = grid
        self.class_token = ClassToken(embed_dim)
        self.position_embedding = LearnedPositionEmbedding(1 + rows * columns, embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                embed_dim,
                num_heads,
                mlp_dim,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                stochastic_depth=config.stochastic_depth * layer / max(1, depth - 1),
            )
            for layer in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPSILON)
        self.head = _HEADS[config.head](embed_dim, context.num_classes)
        for block in self.blocks:
            block.apply(_initialise_linear)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        patches: PatchTokens = self.patch_embedding(images_BCHW)
        tokens_BND = self.class_token(patches.tokens_BND)  # N is now 1 + rows * columns
        tokens_BND = self.dropout(self.position_embedding(tokens_BND))
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        logits_BK: torch.Tensor = self.head(self.norm(tokens_BND[:, 0]))
        return logits_BK


def _initialise_linear(module: nn.Module) -> None:
    """Xavier weights and zero biases, as in the published code."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
