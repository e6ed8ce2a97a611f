"""Stochastic depth: skip a residual branch at random in training (arXiv 1603.09382)."""

from __future__ import annotations

import torch
from torch import nn


class StochasticDepth(nn.Module):
    """Zero the whole branch of a sample with the given probability; scale up the others."""

    def __init__(self, drop_probability: float) -> None:
        super().__init__()
        self.drop_probability = drop_probability

    def forward(self, branch_BND: torch.Tensor) -> torch.Tensor:
        """Return the branch, unchanged in evaluation mode."""
        if not self.training or self.drop_probability == 0.0:
            return branch_BND
        keep = 1.0 - self.drop_probability
        kept_B11 = branch_BND.new_empty(branch_BND.shape[0], 1, 1).bernoulli_(keep)
        return branch_BND * kept_B11 / keep


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Return the drop probability of each block, increasing linearly from 0 (section 3)."""
    return [last * block / max(1, depth - 1) for block in range(depth)]
