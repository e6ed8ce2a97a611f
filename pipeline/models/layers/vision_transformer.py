"""A Vision Transformer, composed of its parts (arXiv 2010.11929, section 3.1, equations 1 to 4).

Shapes: B batch, C channels, H height, W width, N tokens, D embedding, K classes, P tokens before
the patches, V visible patches or the two views of an image at test time.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.models.layers.class_token import ClassToken
from patchline.pipeline.models.layers.patch_dropout import PatchDropout
from patchline.pipeline.models.layers.registers import RegisterTokens
from patchline.pipeline.models.layers.rotary_attention import grid_positions


class VisionTransformer(nn.Module):
    """Classify an image as a sequence of patches: `images_BCHW -> logits_BK`.

    Args:
        patch_embedding: maps images to tokens and their grid.
        class_token: the token that is prepended to the patches; None for none.
        position_embedding: adds their positions to the class token and the patches.
        registers: the tokens that are inserted after the class token, without positions; None for
            none.
        embedding_norm: normalises the tokens before the first block; None for none.
        blocks: the encoder blocks.
        norm: normalises the tokens after the last block.
        pooling: pools the tokens into one feature vector.
        head: maps the feature vector to logits.
        dropout: the dropout probability of the embedded tokens.
        patch_dropout: fraction of the patches that is dropped in training (arXiv 2208.07220).
        rotary: whether the blocks take the positions of the tokens (arXiv 2403.13298); those of
            class token and registers are (0, 0).
        test_time_flip: whether the head gets the average of an image and its mirror image, except
            in training.
    """

    def __init__(
        self,
        patch_embedding: nn.Module,
        *,
        class_token: ClassToken | None = None,
        position_embedding: nn.Module,
        registers: RegisterTokens | None = None,
        embedding_norm: nn.Module | None = None,
        blocks: nn.ModuleList,
        norm: nn.Module,
        pooling: nn.Module,
        head: nn.Module,
        dropout: float = 0.0,
        patch_dropout: float = 0.0,
        rotary: bool = False,
        test_time_flip: bool = False,
    ) -> None:
        super().__init__()
        self.patch_embedding = patch_embedding
        self.class_token = class_token or nn.Identity()
        self.position_embedding = position_embedding
        self.registers = registers or nn.Identity()
        self.embedding_norm = embedding_norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.prefix_tokens = int(class_token is not None)
        if registers is not None:
            self.prefix_tokens += registers.registers_1RD.shape[1]
        self.patch_dropout = PatchDropout(patch_dropout, self.prefix_tokens)
        self.blocks = blocks
        self.norm = norm
        self.pooling = pooling
        self.head = head
        self.rotary = rotary
        self.test_time_flip = test_time_flip

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
        tokens_BND, places = self._embed(images_BCHW, visible_BV)
        for block in self.blocks:
            tokens_BND = block(tokens_BND, *places)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND

    def tokens_after(self, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
        """Return the tokens after a number of blocks, before those that follow."""
        tokens_BND, places = self._embed(images_BCHW, None)
        for block in self.blocks[:blocks]:
            tokens_BND = block(tokens_BND, *places)
        return tokens_BND

    def places(self, grid: tuple[int, int], device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return what blocks take beside the tokens: (N, 2) positions, if they rotate by them."""
        if not self.rotary:
            return ()
        patches_N2 = grid_positions(grid, device)
        return (torch.cat([patches_N2.new_zeros(self.prefix_tokens, 2), patches_N2]),)

    def _embed(
        self, images_BCHW: torch.Tensor, visible_BV: torch.Tensor | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the tokens before the first block, and their places as the blocks take them."""
        tokens_BND, grid = self.patch_embedding(images_BCHW)
        tokens_BND = self.class_token(tokens_BND)  # N is now 1 + rows * columns
        tokens_BND = self.dropout(self.position_embedding(tokens_BND, grid))
        tokens_BND = self.registers(tokens_BND)
        places = self.places(grid, tokens_BND.device)
        if places:
            tokens_BND, kept = self.patch_dropout.with_places(tokens_BND, places[0], visible_BV)
            places = (kept,)
        else:
            tokens_BND = self.patch_dropout(tokens_BND, visible_BV)
        return self.embedding_norm(tokens_BND), places
