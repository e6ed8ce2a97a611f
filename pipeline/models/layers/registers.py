"""Register tokens: learned tokens that belong to no patch (arXiv 2309.16588, section 2.2)."""

from __future__ import annotations

import torch
from torch import nn


class RegisterTokens(nn.Module):
    """Insert R learned tokens after the class token: `tokens_BND -> tokens_B(R+N)D`.

    They are added after the position embedding, pass through every block, and are dropped at the
    end.
    """

    def __init__(self, num_registers: int, embed_dim: int) -> None:
        super().__init__()
        self.registers_1RD = nn.Parameter(torch.empty(1, num_registers, embed_dim))
        nn.init.normal_(self.registers_1RD, std=0.02)

    def forward(self, tokens_BND: torch.Tensor, prefix_tokens: int = 1) -> torch.Tensor:
        """Return the tokens with the registers inserted after the first `prefix_tokens`."""
        registers_BRD = self.registers_1RD.expand(tokens_BND.shape[0], -1, -1)
        prefix_BPD, patches_BND = tokens_BND.tensor_split([prefix_tokens], dim=1)
        return torch.cat([prefix_BPD, registers_BRD, patches_BND], dim=1)
