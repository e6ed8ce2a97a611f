"""The network of the ViT with rotary positions (arXiv 2403.13298, section 3).

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes, V visible patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.class_token import ClassToken
from patchline.pipeline.layers.head import LinearHead
from patchline.pipeline.layers.normalisation import NORMS
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import ClassTokenPooling
from patchline.pipeline.layers.positions import Positions, position_embedding
from patchline.pipeline.layers.registers import RegisterTokens
from patchline.pipeline.layers.rotary_attention import RotarySelfAttention, grid_positions
from patchline.plugin_api import ModelContext, PatchTokens
from patchline.plugins.models.encoder_blocks import encoder_blocks

if TYPE_CHECKING:
    from patchline.plugins.models.rope_vit import RopeVitConfig


class RotaryVisionTransformer(nn.Module):
    """A ViT that rotates queries and keys by position: `images_BCHW -> logits_BK`."""

    def __init__(self, config: RopeVitConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, _, num_heads, _ = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        self.class_token = ClassToken(embed_dim)
        positions: Positions = "learned" if config.absolute_positions else "none"
        self.position_embedding = position_embedding(positions, grid, embed_dim, prefix_tokens=1)
        self.dropout = nn.Dropout(config.dropout)
        registers = config.num_registers
        self.registers = RegisterTokens(registers, embed_dim) if registers else nn.Identity()
        self.prefix_tokens = 1 + registers
        self.patch_dropout = PatchDropout(config.patch_dropout, self.prefix_tokens)
        self.blocks = encoder_blocks(
            config,
            lambda: RotarySelfAttention(
                embed_dim,
                num_heads,
                config.attention_dropout,
                qk_norm=config.qk_norm,
                learned=config.frequencies == "mixed",
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
        patch_places_N2 = grid_positions(patches.grid, tokens_BND.device)
        tokens_BND = self.registers(tokens_BND)
        nowhere_P2 = patch_places_N2.new_zeros(self.prefix_tokens, 2)
        places_N2 = torch.cat([nowhere_P2, patch_places_N2])
        tokens_BND, places = self.patch_dropout.with_places(tokens_BND, places_N2, visible_BV)
        for block in self.blocks:
            tokens_BND = block(tokens_BND, places)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND
