"""Sizes that a layer cannot have are refused with their numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.grid_resizing import resize_grid
from patchline.pipeline.models.layers.pooling import AttentionPooling
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MultiHeadSelfAttention(24, 5), "24 .* 5"),
        (lambda: AttentionPooling(24, 5, 40), "24 .* 5"),
        (lambda: RotarySelfAttention(12, 2), "size 6 is not a multiple of 4"),
        (lambda: SineCosinePositionEmbedding((2, 2), 10), "embed_dim 10 is not a multiple of 4"),
        (
            lambda: resize_grid(torch.zeros(1, 13, 6), (3, 4), (2, 2)),
            "13 values do not fill a grid of 3x4",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(build: Callable[[], object], words: str) -> None:
    """Heads divide the embedding, pairs and quarters fill it, and values fill their grid."""
    with pytest.raises(ValueError, match=words):
        build()
