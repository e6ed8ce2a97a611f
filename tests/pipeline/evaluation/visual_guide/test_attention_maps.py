"""What an answer depends on, and what attention adds up to: known cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attention_maps,
    attribute,
    mean_distances,
    rank_correlation,
    rollout,
    run_covering_test,
)
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.intermediate_values import record_values
from patchline.pipeline.models.model_description import ModelDescription
from tests.pipeline.evaluation.visual_guide.made_guides import SIDE, make_model


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


class _OneCorner(nn.Module):
    """Its answer depends on the upper left quarter of the image alone."""

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        corner_B = images_BCHW[:, :, : SIDE // 2, : SIDE // 2].mean(dim=(1, 2, 3))
        return torch.stack([8 * corner_B, -8 * corner_B], dim=1)


def _images(number: int) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    generator = np.random.default_rng(3)
    return list(generator.integers(0, 256, (number, SIDE, SIDE, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    """Return the description of some model for these images."""
    return make_model({"name": "vit", "depth": 1})[1]


def test_a_map_of_what_the_answer_depends_on_beats_random_parts(
    description: ModelDescription,
) -> None:
    """Covering the strongest fifth, all in the corner, costs more than covering any fifth."""
    assert run_covering_test(_OneCorner(), description, _images(1), seed=0) is None
    found = run_covering_test(_OneCorner(), description, _images(12), seed=0)
    assert found is not None
    [gradient] = found.maps
    assert gradient.kind == "gradient"
    assert gradient.holds
    assert gradient.probability < found.random < found.before
    assert (found.images, found.covered_cells) == (12, round(found.cells / 5))
    assert run_covering_test(_OneCorner(), description, _images(12), seed=0) == found


@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_the_attention_map_is_the_rollout_of_what_is_classified(pooling: str) -> None:
    """Of the class token, or the mean over the patches; the same alone and in a batch."""
    model, description = make_model({"name": "vit", "depth": 2, "pooling": pooling})
    images = _images(3)
    maps = attention_maps(model, description, images)
    assert maps.kind == "attention"
    for image, map_hw in zip(images, maps.maps_Bhw, strict=True):
        with torch.inference_mode(), record_values(model) as values:
            model(normalize(torch.from_numpy(image[None]), description.image))
        blocks = [block.attention.weights_BHNN[0].numpy() for block in values.blocks]
        flow_NN = rollout(np.stack(blocks))
        patches = map_hw.size
        row = flow_NN[0] if pooling == "class_token" else flow_NN.mean(axis=0)
        np.testing.assert_allclose(map_hw.ravel(), row[-patches:], rtol=1e-4)
    assert run_covering_test(model, description, images, seed=1) is not None
