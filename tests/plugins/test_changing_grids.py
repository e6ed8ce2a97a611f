"""Every built-in ViT takes patches on another grid than the one that it was built for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from torch import nn

from patchline.plugin_api import PatchTokens
from tests.plugins.model_parity import built, built_with

BUILT_FOR = (8, 8)
EMBEDDINGS = ["linear", "conv", "conv_stem", "overlap", "cct", "shifted", "whitened"]
OWN_GRID = {"cct", "whitened"}
"""These choose their grid without a patch size."""
VITS: dict[str, dict[str, Any]] = {
    "vit": {},
    "vit sine_cosine": {"positions": "sine_cosine"},
    "vit sine_cosine average": {"positions": "sine_cosine", "pooling": "average"},
    "vit none": {"positions": "none", "pooling": "attention"},
    "simple_vit": {},
    "vit_registers": {},
    "rope_vit axial": {"frequencies": "axial"},
    "rope_vit mixed": {"frequencies": "mixed", "absolute_positions": True},
    "cct": {},
    "cct sine_cosine": {"positions": "sine_cosine"},
    "vit_small_data": {},
}


class AnyGrid(nn.Module):
    """Patches of images of any size, whose grid may differ from the one it was built for."""

    def __init__(self, embed_dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid, self.projection = grid, nn.Conv2d(3, embed_dim, 4, 4)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token for each patch, and the grid of these images."""
        features_BDhw = self.projection(images_BCHW)
        rows, columns = features_BDhw.shape[2:]
        return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), (rows, columns))


def _model(name: str, grid: tuple[int, int]) -> Any:
    return built_with(
        name.partition(" ")[0], lambda embed_dim: AnyGrid(embed_dim, grid), depth=2, **VITS[name]
    )


@torch.no_grad()
@pytest.mark.parametrize("name", VITS)
def test_equals_the_model_that_was_built_for_the_grid(name: str) -> None:
    """The logits are those of a model built for that grid, with positions that timm resampled."""
    grid = (6, 10)
    model, expected = _model(name, BUILT_FOR), _model(name, grid)
    state = model.state_dict()
    positions = "position_embedding.positions_1ND"
    if positions in state:
        state[positions].copy_(torch.randn(state[positions].shape))
        state[positions] = resample_abs_pos_embed(
            state[positions],
            new_size=list(grid),
            old_size=list(BUILT_FOR),
            num_prefix_tokens=state[positions].shape[1] - 64,
        )
    expected.load_state_dict(state)
    images = torch.randn(2, 3, 4 * grid[0], 4 * grid[1])
    torch.testing.assert_close(model(images), expected(images), atol=1e-5, rtol=1e-5)
    assert float(model(images).std()) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_an_embedding_takes_a_smaller_image(embedding: str) -> None:
    """The tokens of a smaller image are those of an embedding that was built for its size."""
    settings = {"name": embedding} | ({"patch_size": 4} if embedding not in OWN_GRID else {})
    ours, expected = (built("vit", side, embedding=settings).patch_embedding for side in (32, 24))
    expected.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 24, 24)
    tokens_BND, grid = ours(images)
    assert grid == expected.grid
    torch.testing.assert_close(tokens_BND, expected(images).tokens_BND, atol=1e-6, rtol=1e-6)
