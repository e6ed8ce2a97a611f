"""Moving values between grids against timm's resampling."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.ndimage
import torch
from timm.layers import resample_abs_pos_embed
from torch.nn import functional
from torchvision.models.vision_transformer import interpolate_embeddings

from patchline.pipeline.models.layers.grid_resizing import resize_grid


@pytest.mark.parametrize("grid", [(7, 7), (4, 9)])
@pytest.mark.parametrize("new_grid", [(14, 14), (9, 4), (1, 1)])
def test_equals_timm(grid: tuple[int, int], new_grid: tuple[int, int]) -> None:
    """Values move between two grids as timm moves position embeddings, up and down."""
    torch.manual_seed(0)
    values_1ND = torch.randn(1, grid[0] * grid[1], 6)
    expected = resample_abs_pos_embed(
        values_1ND, new_size=list(new_grid), old_size=list(grid), num_prefix_tokens=0
    )
    torch.testing.assert_close(resize_grid(values_1ND, grid, new_grid), expected)


@pytest.mark.parametrize("side", [3, 5, 9])
def test_equals_what_authors_do(side: int) -> None:
    """Positions of 7x7 patches move as in the code of transformers, torchvision, DINO and ViT."""
    from transformers.models.dinov2.modeling_dinov2 import Dinov2Config, Dinov2Embeddings

    values_1ND = torch.randn(1, 49, 6)
    positions_1ND = torch.cat([torch.zeros(1, 1, 6), values_1ND], dim=1)
    config = Dinov2Config(hidden_size=6, image_size=14, patch_size=2)
    embeddings: Any = Dinov2Embeddings(config)
    embeddings.position_embeddings.data = positions_1ND
    name = "encoder.pos_embedding"
    grid_1Dhw = values_1ND.transpose(1, 2).reshape(1, 6, 7, 7)
    scales = [(side + 0.1) / 7] * 2
    grid_hwD, tokens = values_1ND.reshape(7, 7, 6).numpy(), torch.zeros(1, 5, 6)
    zoomed = scipy.ndimage.zoom(grid_hwD, (side / 7, side / 7, 1), order=1)
    moved = interpolate_embeddings(2 * side, 2, {name: positions_1ND})
    answers = {
        "bicubic": embeddings.interpolate_pos_encoding(tokens, 2 * side, 2 * side)[:, 1:],
        "bicubic_corners": moved[name][:, 1:],
        "bicubic_offset": functional.interpolate(grid_1Dhw, scale_factor=scales, mode="bicubic")
        .flatten(2)
        .transpose(1, 2),
        "linear_corners": torch.from_numpy(zoomed).reshape(1, -1, 6),
    }
    for resizing, expected in answers.items():
        found = resize_grid(values_1ND, (7, 7), (side, side), resizing)
        torch.testing.assert_close(found, expected)


def test_keeps_the_precision_of_the_values() -> None:
    """Values in bfloat16 are interpolated in float32 and come back in bfloat16."""
    values_1ND = torch.randn(1, 12, 6).bfloat16()
    found = resize_grid(values_1ND, (3, 4), (7, 5))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, resize_grid(values_1ND.float(), (3, 4), (7, 5)).bfloat16())
