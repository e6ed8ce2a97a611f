"""The last blocks of a Vision Transformer as a model of their own, whose input is tokens.

Shapes: B batch, V views, N tokens, D embedding, K classes, C channels, H height, W width.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.layers.vision_transformer import VisionTransformer


class LastBlocks(nn.Module):
    """Everything after the first blocks of a model: `tokens_BND -> logits_BK`.

    It shares its layers with the model, so training it trains the model. In evaluation mode, a
    model with a test-time flip takes the tokens of an image and of its mirror image, (B, 2, N, D).

    Args:
        model: a Vision Transformer.
        count: number of blocks, 0 to all of them; the rest of the model stays as it is.

    Raises:
        ConfigError: if the model cannot be divided, or has fewer blocks.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        divided = divisible(model, count)
        self.first = len(divided.blocks) - count
        self.blocks = divided.blocks[self.first :]
        self.norm, self.pooling, self.head = divided.norm, divided.pooling, divided.head
        self.takes_mirrored = divided.test_time_flip
        self._model = (divided,)  # in a tuple, so that the frozen layers are no part of this module

    @property
    def whole(self) -> VisionTransformer:
        """The model; its frozen layers are on the device where they were built."""
        return self._model[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits for the tokens after the first blocks: (B, N, D), or (B, 2, N, D)."""
        pooled_BD: torch.Tensor = self.pooling(self.encode(tokens.flatten(0, -3)))
        if tokens.ndim == 4:  # noqa: PLR2004 - two views of each image
            pooled_BD = pooled_BD.view(*tokens.shape[:2], -1).mean(1)
        logits_BK: torch.Tensor = self.head(pooled_BD)
        return logits_BK

    def encode(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the last norm."""
        grid: Any = self.whole.patch_embedding.grid
        places = self.whole.places(grid, tokens_BND.device)
        for block in self.blocks:
            tokens_BND = block(tokens_BND, *places)
        encoded_BND: torch.Tensor = self.norm(tokens_BND)
        return encoded_BND

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the last blocks, beside the same frozen layers."""
        whole = self.whole
        own = {id(each) for each in self.modules()}
        frozen = [each for each in whole.modules() if id(each) not in own | {id(whole)}]
        for module in frozen:
            if module is not whole.blocks:  # the list has both kinds
                memo[id(module)] = module
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


def divisible(model: nn.Module, count: int) -> VisionTransformer:
    """Return the model if its last blocks can be trained alone.

    Args:
        model: any model.
        count: number of blocks to train.

    Raises:
        ConfigError: if it is no Vision Transformer of Patchline's layers, or has fewer blocks.
    """
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"The model '{type(model).__name__}' cannot be divided between two blocks, which "
            "training.trainable last_blocks needs. Set training.trainable to head or all, or "
            "choose a Vision Transformer."
        )
    if count > len(model.blocks):
        raise ConfigError(
            f"training.last_blocks is {count}, but the number of blocks in the model is "
            f"{len(model.blocks)}. Choose at most that many, or set training.trainable to all."
        )
    return model


def whole_model(model: nn.Module) -> nn.Module:
    """Return the model that last blocks belong to; any other model is whole itself."""
    return model.whole if isinstance(model, LastBlocks) else model
