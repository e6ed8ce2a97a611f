"""Position embeddings tell equal tokens apart."""

from __future__ import annotations

import pytest
import torch

from pipeline.layers.position_embedding import LearnedPositionEmbedding


def test_adds_one_vector_for_each_place() -> None:
    """Every sample gets the same vectors, and every place a vector of its own."""
    torch.manual_seed(0)
    layer = LearnedPositionEmbedding(5, 4)
    tokens_BND = torch.randn(3, 5, 4)
    added_BND = layer(tokens_BND) - tokens_BND
    torch.testing.assert_close(added_BND, layer.positions_1ND.detach().expand(3, -1, -1))
    assert torch.unique(layer.positions_1ND[0], dim=0).shape == (5, 4)


@torch.no_grad()
def test_tells_equal_tokens_apart() -> None:
    """Tokens that were equal differ after it."""
    torch.manual_seed(0)
    marked_ND = LearnedPositionEmbedding(6, 8)(torch.ones(1, 6, 8))[0]
    distances = torch.cdist(marked_ND, marked_ND) + torch.eye(6)
    assert float(distances.min()) > 1e-3


def test_refuses_another_number_of_tokens() -> None:
    """A sequence of another length is an error, not a silent repetition."""
    layer = LearnedPositionEmbedding(5, 4)
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 6, 4))
