"""Export a trained model to ONNX (uint8 images in, calibrated probabilities out); check parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.errors import PackagingError
from pipeline.models.inference import normalised
from pipeline.models.onnx_export import write_onnx
from pipeline.plugin_api import ImageSpec

TOLERANCE = 1e-4
"""Largest allowed difference in probability between the package and the trained model."""


class ProbabilityModel(nn.Module):
    """Normalise, classify and calibrate: uint8 (B, H, W, C) -> probabilities (B, K)."""

    def __init__(self, model: nn.Module, image: ImageSpec, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.image = image
        self.temperature = temperature

    def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Return the probabilities."""
        logits_BK = self.model(normalised(images_BHWC, self.image))
        return torch.softmax(logits_BK.float() / self.temperature, dim=1)


def export_onnx(model: ProbabilityModel, file: Path) -> None:
    """Write the model as one ONNX file with a dynamic batch dimension.

    Raises:
        PackagingError: if torch cannot export the model.
    """
    image = model.image
    example = torch.zeros((2, image.height, image.width, image.channels), dtype=torch.uint8)
    write_onnx(model, example, file, input_name="images", output_name="probabilities")


def largest_difference(model: ProbabilityModel, file: Path, images: np.ndarray[Any, Any]) -> float:
    """Return the largest difference in probability between ONNX Runtime and torch.

    Predicts batches of 1, 2, 7 and the remaining images, to cover several batch sizes.

    Raises:
        PackagingError: if the difference exceeds 1e-4.
    """
    from pipeline.models.onnx_session import open_session

    session = open_session(file)
    largest, start = 0.0, 0
    for size in (1, 2, 7, len(images)):
        batch = np.ascontiguousarray(images[start : start + size])
        start += size
        if not len(batch):
            break
        with torch.inference_mode():
            expected = model(torch.from_numpy(batch)).numpy()
        packaged = session.run(None, {"images": batch})[0]
        # np.maximum propagates NaN, which then fails the comparison below
        largest = float(np.maximum(largest, np.abs(expected - packaged).max()))
    if not largest <= TOLERANCE:
        raise PackagingError(
            f"A probability of the packaged model differs from the trained model's by "
            f"{largest:.2g}; at most {TOLERANCE:g} is allowed. Report this with the model's "
            "settings."
        )
    return largest
