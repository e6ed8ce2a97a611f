"""Interpolate values from one grid of patches to another (arXiv 2010.11929, section 3.2).

Shapes: N = rows * columns positions, D values each, P prefix tokens (class token, registers).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_MODES: dict[str, dict[str, Any]] = {
    "antialiased": {"mode": "bicubic", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "bicubic_offset": {"mode": "bicubic"},
    "bicubic_corners": {"mode": "bicubic", "align_corners": True},
    "linear_corners": {"mode": "bilinear", "align_corners": True},
}
"""How the authors of weights resize their positions, by name."""
_OFFSET = 0.1
"""Added to the new sides, whose ratio to the old ones is then the scale, by DINO and DINOv2."""


def resize_grid(
    values_1ND: torch.Tensor,
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    resizing: str = "antialiased",
) -> torch.Tensor:
    """Interpolate a grid of values: (1, N', D).

    Raises:
        ValueError: if the values do not fill the grid.
    """
    rows, columns = grid
    if values_1ND.shape[1] != rows * columns:
        raise ValueError(f"{values_1ND.shape[1]} values do not fill a grid of {rows}x{columns}")
    values_1Dhw = values_1ND.transpose(1, 2).reshape(1, -1, rows, columns)
    target: dict[str, Any] = {"size": new_grid}
    if resizing == "bicubic_offset":
        scales = [(new + _OFFSET) / old for new, old in zip(new_grid, grid, strict=True)]
        target = {"scale_factor": scales}
    resized_1Dhw = functional.interpolate(values_1Dhw.float(), **target, **_MODES[resizing])
    return resized_1Dhw.flatten(2).transpose(1, 2).to(values_1ND.dtype)


def resize_positions(
    positions_1ND: torch.Tensor,
    prefix_tokens: int,
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    resizing: str = "antialiased",
) -> torch.Tensor:
    """Interpolate the positions of the patches to another grid: (1, P + rows * columns, D).

    The first `prefix_tokens` positions are kept.

    Raises:
        ValueError: if the other positions do not fill the grid.
    """
    if grid == new_grid:
        return positions_1ND
    prefix_1PD, patches_1ND = positions_1ND.tensor_split([prefix_tokens], dim=1)
    return torch.cat([prefix_1PD, resize_grid(patches_1ND, grid, new_grid, resizing)], dim=1)
