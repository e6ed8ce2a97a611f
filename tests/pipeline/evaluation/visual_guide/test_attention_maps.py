"""What an answer depends on, and what attention adds up to: known cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attribute,
    mean_distances,
    rank_correlation,
)


class Corner(nn.Module):
    """Answers class 1 the more, the brighter the top left quarter is."""

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        half = images_BCHW.shape[-1] // 2
        evidence_B = images_BCHW[:, 0, :half, :half].mean(dim=(1, 2))
        return torch.stack([-evidence_B, evidence_B], dim=1)


def test_both_maps_find_the_part_that_decides() -> None:
    """Only the cell that the model looks at changes the answer, by covering and by gradient."""
    found = attribute(Corner(), torch.ones(3, 8, 8), 1, (2, 2))
    assert found.occlusion_hw is not None
    assert found.probabilities_hw is not None
    before = 1 / (1 + np.exp(-2.0))
    np.testing.assert_allclose(found.probabilities_hw, [[0.5, before], [before, before]], rtol=1e-5)
    rise = -np.log(0.5) + np.log(before)
    np.testing.assert_allclose(found.occlusion_hw, [[rise, 0], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(found.gradient_hw, [[2 * (1 - before), 0], [0, 0]], atol=1e-6)
    assert found.agreement == pytest.approx(1)


def test_attention_to_oneself_reaches_no_distance() -> None:
    """Attention to the right neighbour reaches 1 patch; the class token has no place."""
    itself = np.eye(5)
    neighbour = np.eye(5)
    neighbour[1:, 1:] = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    distances = mean_distances(np.stack([itself, neighbour])[None], (2, 2))
    np.testing.assert_allclose(distances, [[0, 1]])


def test_equal_values_share_their_rank() -> None:
    """The rank correlation is scipy's, with ties; a constant map has none."""
    first, second = np.random.default_rng(1).integers(0, 5, (2, 6, 6))
    expected = spearmanr(first.ravel(), second.ravel()).statistic
    assert rank_correlation(first, second) == pytest.approx(expected)
    assert rank_correlation(first, np.ones((6, 6))) is None
