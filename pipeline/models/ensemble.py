"""Several models as one: the average of their calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn


class Ensemble(nn.Module):
    """Average the probabilities of models with the same classes: (B, C, H, W) -> logits (B, K).

    The logits are the logarithm of the average, so their softmax is the average.

    Args:
        models: the members.
        temperatures: divides the logits of each member before its softmax.
    """

    temperatures_M: torch.Tensor

    def __init__(self, models: Sequence[nn.Module], temperatures: Sequence[float] = ()) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        values = torch.tensor(temperatures) if temperatures else torch.ones(len(models))
        self.register_buffer("temperatures_M", values)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the average probabilities."""
        logs = [
            torch.log_softmax(member(images_BCHW).float() / temperature, dim=1)
            for member, temperature in zip(self.members, self.temperatures_M, strict=True)
        ]
        return torch.logsumexp(torch.stack(logs), dim=0) - math.log(len(logs))
