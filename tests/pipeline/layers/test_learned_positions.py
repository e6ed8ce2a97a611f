"""Learned positions tell equal tokens apart, on the grid that was learned and on others."""

from __future__ import annotations

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from patchline.pipeline.layers.learned_positions import LearnedPositionEmbedding

GRID = (3, 5)


def _layer(grid: tuple[int, int] = GRID, prefix_tokens: int = 0) -> LearnedPositionEmbedding:
    torch.manual_seed(0)
    return LearnedPositionEmbedding(grid, 4, prefix_tokens, std=0.5)


@torch.no_grad()
@pytest.mark.parametrize("std", [0.02, 0.2])
def test_starts_with_small_random_vectors(std: float) -> None:
    """The initial vectors are normal with the standard deviation that was asked for."""
    torch.manual_seed(0)
    positions_1ND = LearnedPositionEmbedding((20, 20), 64, std=std).positions_1ND
    assert float(positions_1ND.std()) == pytest.approx(std, rel=0.03)
    assert abs(float(positions_1ND.mean())) < 0.03 * std


@torch.no_grad()
@pytest.mark.parametrize("new_grid", [(6, 10), (2, 3), (5, 3), (3, 4)])
@pytest.mark.parametrize("prefix_tokens", [0, 2])
def test_another_grid_gets_interpolated_vectors(
    new_grid: tuple[int, int], prefix_tokens: int
) -> None:
    """On another grid the vectors are those of timm's resampling; those in front stay."""
    layer = _layer(prefix_tokens=prefix_tokens)
    tokens_BND = torch.randn(2, prefix_tokens + new_grid[0] * new_grid[1], 4)
    expected_1ND = resample_abs_pos_embed(
        layer.positions_1ND,
        new_size=list(new_grid),
        old_size=list(GRID),
        num_prefix_tokens=prefix_tokens,
    )
    torch.testing.assert_close(layer(tokens_BND, new_grid), tokens_BND + expected_1ND)


def test_a_transposed_grid_is_another_grid() -> None:
    """As many places in other rows and columns are not mistaken for the learned ones."""
    layer = _layer((3, 5))
    assert not torch.allclose(layer.on_grid((5, 3)), layer.on_grid((3, 5)), atol=1e-2)


def test_refuses_another_number_of_tokens() -> None:
    """A sequence that does not fill its grid is an error, not a silent repetition."""
    with pytest.raises(RuntimeError):
        _layer()(torch.randn(3, 16, 4), GRID)
