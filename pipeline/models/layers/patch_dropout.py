"""PatchDropout: train on a random subset of the patches (arXiv 2208.07220, section 3).

Shapes: B batch, N tokens, P prefix tokens among them (class token, registers), V visible patches, M
kept tokens, D embedding.
"""

from __future__ import annotations

import torch
from torch import nn


class PatchDropout(nn.Module):
    """Keep a random subset of an image's patches in training: `tokens_BND -> tokens_BMD`.

    Apply it after the position embedding, so that kept tokens have their positions. A rate of 0.5
    halves the cost of training. Prefix tokens and at least one patch are always kept.
    """

    def __init__(self, rate: float, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.rate = rate
        self.prefix_tokens = prefix_tokens

    def forward(
        self, tokens_BND: torch.Tensor, visible_BV: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the kept tokens, in their order.

        `visible_BV` holds the numbers of the patches to keep; without it, they are drawn.
        """
        kept_BM = self._kept(tokens_BND, visible_BV)
        return tokens_BND if kept_BM is None else _choose_tokens(tokens_BND, kept_BM)

    def with_places(
        self,
        tokens_BND: torch.Tensor,
        places_N2: torch.Tensor,
        visible_BV: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the kept tokens and their positions: (B, M, 2), or (N, 2) if all are kept."""
        kept_BM = self._kept(tokens_BND, visible_BV)
        if kept_BM is None:
            return tokens_BND, places_N2
        return _choose_tokens(tokens_BND, kept_BM), places_N2[kept_BM]

    def _kept(
        self, tokens_BND: torch.Tensor, visible_BV: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the indices (B, M) of the tokens to keep; None keeps all."""
        B, N, P = tokens_BND.shape[0], tokens_BND.shape[1], self.prefix_tokens
        if visible_BV is None:
            if not self.training or self.rate == 0.0:
                return None
            keep = max(1, round((N - P) * (1 - self.rate)))
            order_BN = torch.rand(B, N - P, device=tokens_BND.device).argsort(dim=1)
            visible_BV = order_BN[:, :keep].sort(dim=1).values
        prefix_BP = torch.arange(P, device=tokens_BND.device).expand(B, -1)
        return torch.cat([prefix_BP, P + visible_BV], dim=1)


def _choose_tokens(tokens_BND: torch.Tensor, kept_BM: torch.Tensor) -> torch.Tensor:
    return tokens_BND.gather(1, kept_BM[:, :, None].expand(-1, -1, tokens_BND.shape[2]))
