"""The share of the machine's matrix-product rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.progressive_size import ProgressiveSize
from patchline.pipeline.training.speed.compute_share import (
    ComputeShare,
    forward_flops,
)
from patchline.plugin_api import ImageSpec

CPU = torch.device("cpu")
IMAGE = ImageSpec(channels=1, height=8, width=8, mean=(0.5,), std=(0.5,), resize="crop")


def test_operations_are_two_per_multiplication_of_one_view() -> None:
    """A matrix of 64 inputs and 10 outputs has 640 multiplications; a flip does not count."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    assert forward_flops(model, IMAGE, CPU) == 2 * 640
    assert model.training
    counts = []
    for flip in (False, True):
        choice = ModelChoice.model_validate({"name": "vit", "test_time_flip": flip})
        vit: Any = build_model(choice, IMAGE, 10)
        counts.append(forward_flops(vit, IMAGE, CPU))
        assert vit.test_time_flip is flip
    assert counts[0] == counts[1] > 0


def _sizes(model: nn.Module, **settings: float) -> ProgressiveSize:
    return ProgressiveSize(TrainingConfig.model_validate(settings), IMAGE, model)


def test_smaller_images_count_as_what_they_cost() -> None:
    """Half the side for half of the training: a convolution costs 5/8 of the full size in all."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    settings = {"initial_image_scale": 0.5, "full_size_from": 0.5}
    share = ComputeShare(model, IMAGE, _sizes(model, **settings), CPU, "float32")
    always_full = share.at(1e6, 1e12)
    assert share.at(1e6, 0.25) == pytest.approx(always_full / 4)
    assert share.at(1e6, 1.0) == pytest.approx(always_full * 5 / 8)
