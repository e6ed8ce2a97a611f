"""LayerScale: a learned gain per channel of a residual branch (arXiv 2103.17239, section 2)."""

from __future__ import annotations

import torch
from torch import nn


class LayerScale(nn.Module):
    """Multiply each of the D channels of a branch by its own gain: `tokens_BND -> tokens_BND`.

    With small initial gains a deep network starts close to the identity.
    """

    def __init__(self, embed_dim: int, initial_gain: float) -> None:
        super().__init__()
        self.gain_D = nn.Parameter(torch.full((embed_dim,), initial_gain))

    def forward(self, branch_BND: torch.Tensor) -> torch.Tensor:
        """Return the scaled branch."""
        return branch_BND * self.gain_D
