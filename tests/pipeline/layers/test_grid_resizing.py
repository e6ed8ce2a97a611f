"""Moving values between grids against timm's resampling."""

from __future__ import annotations

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from patchline.pipeline.layers.grid_resizing import resized_grid, resized_positions


@pytest.mark.parametrize("grid", [(7, 7), (4, 9)])
@pytest.mark.parametrize("new_grid", [(14, 14), (3, 3), (9, 4), (5, 12), (1, 1)])
def test_equals_timm(grid: tuple[int, int], new_grid: tuple[int, int]) -> None:
    """Values move between two grids as timm moves position embeddings, up and down."""
    torch.manual_seed(0)
    values_1ND = torch.randn(1, grid[0] * grid[1], 6)
    expected = resample_abs_pos_embed(
        values_1ND, new_size=list(new_grid), old_size=list(grid), num_prefix_tokens=0
    )
    torch.testing.assert_close(resized_grid(values_1ND, grid, new_grid), expected)


def test_the_same_grid_keeps_the_values() -> None:
    """Between equal grids nothing moves."""
    values_1ND = torch.randn(1, 12, 6)
    torch.testing.assert_close(resized_grid(values_1ND, (3, 4), (3, 4)), values_1ND)


def test_keeps_the_precision_of_the_values() -> None:
    """Values in bfloat16 are interpolated in float32 and come back in bfloat16."""
    values_1ND = torch.randn(1, 12, 6).bfloat16()
    found = resized_grid(values_1ND, (3, 4), (7, 5))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, resized_grid(values_1ND.float(), (3, 4), (7, 5)).bfloat16())


def test_refuses_values_that_do_not_fill_the_grid() -> None:
    """Too many values for a grid are refused with both numbers."""
    with pytest.raises(ValueError, match="13 values do not fill a grid of 3x4"):
        resized_grid(torch.zeros(1, 13, 6), (3, 4), (2, 2))


def test_positions_of_the_same_grid_are_not_copied() -> None:
    """Positions of the same grid are returned as they are, so that they stay the parameter."""
    positions_1ND = torch.randn(1, 10, 4)
    assert resized_positions(positions_1ND, 1, (3, 3), (3, 3)) is positions_1ND
