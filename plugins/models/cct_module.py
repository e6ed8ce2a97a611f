"""The network of the Compact Convolutional Transformer (arXiv 2104.05704, section 3).

Its block is the one of the authors' code, which normalises the residual stream itself between
attention and MLP; the paper's figure shows the usual pre-norm block.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from patchline.pipeline.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.layers.head import LinearHead
from patchline.pipeline.layers.initialisation import truncated_normal
from patchline.pipeline.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.layers.mlp import MLP
from patchline.pipeline.layers.patch_dropout import PatchDropout
from patchline.pipeline.layers.pooling import SequencePooling
from patchline.pipeline.layers.positions import position_embedding
from patchline.pipeline.layers.stochastic_depth import StochasticDepth, drop_path_rates
from patchline.plugin_api import ModelContext, PatchTokens

if TYPE_CHECKING:
    from patchline.plugins.models.cct import CctConfig

_POSITION_STD = 0.2


class CompactTransformer(nn.Module):
    """Classify an image by a weighted average of its tokens: `images_BCHW -> logits_BK`."""

    def __init__(self, config: CctConfig, context: ModelContext) -> None:
        super().__init__()
        embed_dim, depth, _, _ = config.dimensions()
        self.patch_embedding = context.patch_embedding(embed_dim)
        grid: Any = self.patch_embedding.grid
        self.position_embedding = (
            LearnedPositionEmbedding(grid, embed_dim, std=_POSITION_STD)
            if config.positions == "learned"
            else position_embedding(config.positions, grid, embed_dim)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout)
        self.blocks = nn.ModuleList(
            CompactBlock(config, rate) for rate in drop_path_rates(config.stochastic_depth, depth)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.pooling = SequencePooling(embed_dim)
        self.head = LinearHead(embed_dim, context.num_classes)
        for part in (self.blocks, self.pooling):
            part.apply(truncated_normal)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of normalised images."""
        patches: PatchTokens = self.patch_embedding(images_BCHW)
        tokens_BND = self.position_embedding(patches.tokens_BND, patches.grid)
        tokens_BND = self.patch_dropout(self.dropout(tokens_BND))
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        logits_BK: torch.Tensor = self.head(self.pooling(self.norm(tokens_BND)))
        return logits_BK


class CompactBlock(nn.Module):
    """One block, with the norm before the MLP on the stream: `tokens_BND -> tokens_BND`.

    z' = LN(MSA(LN(z)) + z);  z'' = MLP(z') + z'
    """

    def __init__(self, config: CctConfig, stochastic_depth: float) -> None:
        super().__init__()
        embed_dim, _, num_heads, mlp_dim = config.dimensions()
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.attention = MultiHeadSelfAttention(
            embed_dim, num_heads, config.attention_dropout, bias=False
        )
        self.attention_dropout = nn.Dropout(config.dropout)
        self.stream_norm = nn.LayerNorm(embed_dim)
        self.mlp = MLP(embed_dim, mlp_dim, config.dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens after both residual branches."""
        attended_BND = self.attention_dropout(self.attention(self.attention_norm(tokens_BND)))
        stream_BND = self.stream_norm(tokens_BND + self.stochastic_depth(attended_BND))
        output_BND: torch.Tensor = stream_BND + self.stochastic_depth(self.mlp(stream_BND))
        return output_BND
