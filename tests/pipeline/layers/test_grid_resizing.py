"""Moving values between grids against timm's resampling."""

from __future__ import annotations

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from patchline.pipeline.layers.grid_resizing import resized_grid


@pytest.mark.parametrize("grid", [(7, 7), (4, 9)])
@pytest.mark.parametrize("new_grid", [(14, 14), (9, 4), (1, 1)])
def test_equals_timm(grid: tuple[int, int], new_grid: tuple[int, int]) -> None:
    """Values move between two grids as timm moves position embeddings, up and down."""
    torch.manual_seed(0)
    values_1ND = torch.randn(1, grid[0] * grid[1], 6)
    expected = resample_abs_pos_embed(
        values_1ND, new_size=list(new_grid), old_size=list(grid), num_prefix_tokens=0
    )
    torch.testing.assert_close(resized_grid(values_1ND, grid, new_grid), expected)


def test_keeps_the_precision_of_the_values() -> None:
    """Values in bfloat16 are interpolated in float32 and come back in bfloat16."""
    values_1ND = torch.randn(1, 12, 6).bfloat16()
    found = resized_grid(values_1ND, (3, 4), (7, 5))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, resized_grid(values_1ND.float(), (3, 4), (7, 5)).bfloat16())
