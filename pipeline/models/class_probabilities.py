"""From logits to the probabilities that a model answers with, in torch.

Shapes: B images, K classes or labels.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.models.model_description import Calibration


def class_probabilities(
    logits: torch.Tensor, calibration: Calibration, *, dim: int = -1
) -> torch.Tensor:
    """Return calibrated probabilities of logits (…, K).

    Args:
        logits: of a model.
        calibration: of a model; that of a multi-label model has sigmoids, any other a softmax.
        dim: the axis K by its number, which is the last one.
    """
    scaled = calibrated_logits(logits, calibration)
    if isinstance(calibration, LabelCalibration):
        return torch.sigmoid(scaled)
    return torch.softmax(scaled, dim=dim)


def calibrated_logits(logits: torch.Tensor, calibration: Calibration) -> torch.Tensor:
    """Return the logits (…, K) whose softmax, or sigmoids, are the calibrated probabilities."""
    scales, shifts = calibration.scaling(logits.shape[-1])
    scales_K = torch.tensor(scales, dtype=torch.float32, device=logits.device)
    shifts_K = torch.tensor(shifts, dtype=torch.float32, device=logits.device)
    return logits.float() * scales_K + shifts_K


class CalibratedModel(nn.Module):
    """A model whose logits are calibrated: (B, C, H, W) -> (B, K).

    Args:
        model: the model.
        calibration: of its logits.
    """

    def __init__(self, model: nn.Module, calibration: Calibration) -> None:
        super().__init__()
        self.model, self.calibration = model, calibration

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the calibrated logits."""
        return calibrated_logits(self.model(images_BCHW), self.calibration)
