"""Tokens from a feature map: each place of the grid becomes a token.

Shapes: B batch, N tokens, D embedding; h, w the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import PatchTokens

if TYPE_CHECKING:
    import torch


def tokens_of(features_BDhw: torch.Tensor) -> PatchTokens:
    """Return the places of a feature map as tokens, row by row, with their grid."""
    rows, columns = features_BDhw.shape[-2:]
    return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), (rows, columns))
