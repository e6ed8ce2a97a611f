"""The share of the machine's matrix-product rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.speed.compute_share import (
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
