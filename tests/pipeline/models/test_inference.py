"""Predictions over stored images: a device with little memory gets smaller batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import normalize, predict_logits
from tests.plugins.model_parity import image_spec

IMAGE = image_spec(8)


class _Limited(nn.Module):
    """A model on a device that has memory for some images."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.seen = most, [0]
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return logits (B, 5), or fail as a device does."""
        if len(images_BCHW) > self.most:
            raise torch.OutOfMemoryError
        self.seen.append(len(images_BCHW))
        logits_BK: torch.Tensor = self.body(images_BCHW)
        return logits_BK


def test_a_batch_that_does_not_fit_is_divided() -> None:
    """The logits are the same, each image is predicted once, and progress reaches the end."""
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
    rows = np.arange(19, -1, -1)
    model, done = _Limited(20), [(0, 0)]
    expected = predict_logits(model, images, rows, IMAGE, batch_size=16)
    model.most, model.seen = 5, []
    found = predict_logits(
        model, images, rows, IMAGE, batch_size=16, on_progress=lambda *now: done.append(now)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert model.seen == [4] * 5
    assert done[-1] == (20, 20)


def test_a_training_run_is_validated_in_its_precision() -> None:
    """With bfloat16 the products are those of autocast; without, they are exact."""
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    rows, model = np.arange(6), _Limited(20)
    exact = predict_logits(model, images, rows, IMAGE)
    coarse = predict_logits(model, images, rows, IMAGE, precision="bfloat16")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(normalize(torch.from_numpy(images), IMAGE)).float()
    assert torch.equal(coarse, expected)
    assert not torch.equal(coarse, exact)
    assert coarse.dtype == exact.dtype == torch.float32
