"""The network of the ViT with registers (arXiv 2309.16588, section 2.2).

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes, V visible patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.class_token import ClassToken
from patchline.pipeline.layers.head import LinearHead
from patchline.pipeline.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.layers.normalisation import NORMS
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import ClassTokenPooling
from patchline.pipeline.layers.registers import RegisterTokens
from patchline.plugin_api import ModelContext, PatchTokens
from patchline.plugins.models.encoder_blocks import encoder_blocks

if TYPE_CHECKING:
    from patchline.plugins.models.vit_registers import VitRegistersConfig


class RegisterVisionTransformer(nn.Module):
    """Class token, registers, patches; the head reads the first: `images_BCHW -> logits_BK`."""

    def __init__(self, config: VitRegistersConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, _, num_heads, _ = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        self.class_token = ClassToken(embed_dim)
        self.position_embedding = LearnedPositionEmbedding(grid, embed_dim, prefix_tokens=1)
        self.registers = RegisterTokens(config.num_registers, embed_dim)
        self.embedding_norm = (
            NORMS[config.norm](embed_dim, config.norm_epsilon)
            if config.embedding_norm
            else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout, 1 + config.num_registers)
        self.blocks = encoder_blocks(
            config,
            lambda: MultiHeadSelfAttention(
                embed_dim, num_heads, config.attention_dropout, qk_norm=config.qk_norm
            ),
        )
        self.norm = NORMS[config.norm](embed_dim, config.norm_epsilon)
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
        tokens_BND = self.patch_dropout(self.registers(tokens_BND), visible_BV)
        tokens_BND = self.embedding_norm(tokens_BND)
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND
