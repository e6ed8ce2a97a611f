"""The network of the Vision Transformer (arXiv 2010.11929, section 3.1, equations 1 to 4).

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes, V visible patches
or the two views of an image at test time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.class_token import ClassToken
from patchline.pipeline.layers.head import LinearHead, TanhHead
from patchline.pipeline.layers.normalisation import NORMS
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import AttentionPooling, AveragePooling, ClassTokenPooling
from patchline.pipeline.layers.positions import position_embedding
from patchline.plugin_api import ModelContext, PatchTokens
from patchline.plugins.models.encoder_blocks import encoder_blocks

if TYPE_CHECKING:
    from patchline.plugins.models.vit import VitConfig


_HEADS = {"linear": LinearHead, "tanh": TanhHead}


class VisionTransformer(nn.Module):
    """Classify an image as a sequence of patches: `images_BCHW -> logits_BK`."""

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, _, num_heads, _ = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        prefix_tokens = 1 if config.pooling == "class_token" else 0
        self.class_token = ClassToken(embed_dim) if prefix_tokens else nn.Identity()
        self.position_embedding = position_embedding(
            config.positions, grid, embed_dim, prefix_tokens
        )
        self.embedding_norm = (
            NORMS[config.norm](embed_dim, config.norm_epsilon)
            if config.embedding_norm
            else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout, prefix_tokens)
        self.blocks = encoder_blocks(
            config,
            lambda: MultiHeadSelfAttention(
                embed_dim, num_heads, config.attention_dropout, qk_norm=config.qk_norm
            ),
        )
        self.norm = NORMS[config.norm](embed_dim, config.norm_epsilon)
        self.pooling = _pooling(config)
        self.test_time_flip = config.test_time_flip
        self.head = _HEADS[config.head](embed_dim, context.num_classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        if self.test_time_flip and not self.training:
            views_VBCHW = torch.stack((images_BCHW, images_BCHW.flip(-1)))
            pooled_VBD = self.pooling(self.encode(views_VBCHW.flatten(0, 1)))
            pooled_BD = pooled_VBD.unflatten(0, (2, -1)).mean(0)
        else:
            pooled_BD = self.pooling(self.encode(images_BCHW))
        logits_BK: torch.Tensor = self.head(pooled_BD)
        return logits_BK

    def encode(
        self, images_BCHW: torch.Tensor, visible_BV: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the tokens after the last norm; see `patchline.plugin_api.Encoder`."""
        patches: PatchTokens = self.patch_embedding(images_BCHW)
        tokens_BND = self.class_token(patches.tokens_BND)  # N is now 1 + rows * columns
        tokens_BND = self.dropout(self.position_embedding(tokens_BND, patches.grid))
        tokens_BND = self.embedding_norm(self.patch_dropout(tokens_BND, visible_BV))
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND


def _pooling(config: VitConfig) -> nn.Module:
    embed_dim, _, num_heads, mlp_dim = config.dimensions()
    if config.pooling == "attention":
        return AttentionPooling(
            embed_dim,
            num_heads,
            mlp_dim,
            activation=config.activation,
            norm_epsilon=config.norm_epsilon,
        )
    return AveragePooling() if config.pooling == "average" else ClassTokenPooling()
