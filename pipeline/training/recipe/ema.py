"""The moving average of the weights, which is validated, kept and packaged."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class MovingAverage:
    """An exponential moving average whose decay is warmed up: min(decay, (1 + n) / (10 + n)).

    So even in a short run the average is no longer dominated by the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the model after `step` steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages: list[torch.Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if mine.is_floating_point():  # batch statistics belong to the averaged weights
                mine.lerp_(theirs, 1 - decay)
            else:
                mine.copy_(theirs)

    @torch.no_grad()
    def take_averaged(self, model: nn.Module, optimizer: Any) -> None:
        """Take the weights that an optimizer such as Schedule-Free AdamW has averaged itself.

        The optimizer converts the model's weights into the average and back, which rounds them, so
        the model gets back exactly what it had.
        """
        weights = [parameter.clone() for parameter in model.parameters()]
        optimizer.eval()
        self.model.load_state_dict(model.state_dict())
        optimizer.train()
        torch._foreach_copy_(list(model.parameters()), weights)
