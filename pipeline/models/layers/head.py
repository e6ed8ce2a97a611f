"""The two classification heads of the paper (arXiv 2010.11929, section 3.1)."""

from __future__ import annotations

import torch
from torch import nn


class LinearHead(nn.Linear):
    """One linear layer, as in fine-tuning: `features_BD -> logits_BK`."""

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__(embed_dim, num_classes)
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)


class TanhHead(nn.Module):
    """A hidden tanh layer before the linear one, as in pre-training: `features_BD -> logits_BK`."""

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(embed_dim, embed_dim)
        self.output = LinearHead(embed_dim, num_classes)

    def forward(self, features_BD: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits_BK: torch.Tensor = self.output(torch.tanh(self.hidden(features_BD)))
        return logits_BK
