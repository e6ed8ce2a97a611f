"""The moving average of the weights, which is validated, kept and packaged."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class MovingAverage:
    """An exponential moving average whose decay is warmed up: min(decay, (1 + n) / (10 + n)).

    So even in a short run the average is no longer dominated by the initial weights.

    Args:
        model: on its device; its parameters and buffers are followed.
        decay: of the average after many steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.decay = decay
        # Listing them walks through all modules, which would take longer than the update. Batch
        # statistics belong to the averaged weights.
        pairs = [
            *zip(self.model.parameters(), model.parameters(), strict=True),
            *zip(self.model.buffers(), model.buffers(), strict=True),
        ]
        self._averaged = [mine for mine, _ in pairs if mine.is_floating_point()]
        self._followed = [theirs for _, theirs in pairs if theirs.is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the model after `step` steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._followed, 1 - decay)
        for mine, theirs in self._copied:
            mine.copy_(theirs)

    @torch.no_grad()
    def take_averaged(self, model: nn.Module, optimizer: Any) -> None:
        """Take the weights that an optimizer such as Schedule-Free AdamW has averaged itself.

        Batch-norm statistics are those of other weights, at which the gradients were computed, and
        have to be measured afterwards. The optimizer converts the model's weights into the average
        and back, which rounds them, so the model gets back exactly what it had.
        """
        weights = [parameter.clone() for parameter in model.parameters()]
        optimizer.eval()
        self.model.load_state_dict(model.state_dict())
        optimizer.train()
        torch._foreach_copy_(list(model.parameters()), weights)
