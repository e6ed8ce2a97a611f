"""Every built-in ViT takes patches on another grid than the one that it was built for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from tests.plugins.model_parity import AnyGrid, built, built_with

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


def _model(name: str, grid: tuple[int, int]) -> Any:
    return built_with(
        name.partition(" ")[0], lambda embed_dim: AnyGrid(embed_dim, grid), depth=2, **VITS[name]
    )


@torch.no_grad()
@pytest.mark.parametrize("grid", [(4, 4), (6, 10)])
@pytest.mark.parametrize("name", list(VITS))
def test_equals_the_model_that_was_built_for_the_grid(name: str, grid: tuple[int, int]) -> None:
    """The logits are those of a model built for that grid, with positions that timm resampled."""
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


@pytest.mark.parametrize("name", list(VITS))
def test_learns_from_patches_of_random_sizes(name: str) -> None:
    """With the embedding flexi, every grid that it draws trains every parameter of the blocks."""
    sizes = {"patch_size": 8, "patch_sizes": [4, 16]}
    model = built(
        name.partition(" ")[0], 32, embedding={"name": "flexi", **sizes}, depth=2, **VITS[name]
    ).train()
    model.patch_embedding.register_forward_hook(lambda *given: grids.add(given[2].grid))
    grids: set[tuple[int, int]] = set()
    for _ in range(8):
        model.zero_grad()
        model(torch.randn(2, 3, 32, 32)).square().sum().backward()
        for name_of, parameter in model.named_parameters():
            assert parameter.grad is not None, name_of
            assert bool(torch.isfinite(parameter.grad).all()), name_of
    assert grids == {(8, 8), (2, 2)}
    model.eval()(torch.randn(2, 3, 32, 32))
    assert grids == {(8, 8), (2, 2), (4, 4)}
