"""From logits to the probabilities that a model answers with, in torch.

Shapes: B images, K classes or labels.
"""

from __future__ import annotations

import torch
from torch import nn

from patchline.pipeline.metrics.label_calibration import LabelCalibration
from patchline.pipeline.models.model_description import ModelDescription


def class_probabilities(
    logits: torch.Tensor,
    temperature: float,
    labels: LabelCalibration | None = None,
    *,
    dim: int = -1,
) -> torch.Tensor:
    """Return calibrated probabilities of logits, of any shape whose axis `dim` is K.

    Args:
        logits: of a model.
        temperature: divides them before the softmax of a model with one label for each image.
        labels: scale and shift before the sigmoid of a multi-label model; None of any other.
        dim: the axis K; the last one of a multi-label model.
    """
    if labels is None:
        return torch.softmax(logits.float() / temperature, dim=dim)
    return torch.sigmoid(calibrated_logits(logits, labels))


def calibrated_logits(logits: torch.Tensor, labels: LabelCalibration) -> torch.Tensor:
    """Return the logits (…, K) whose sigmoids are the calibrated probabilities."""
    scales_K = torch.tensor(labels.scales, dtype=torch.float32, device=logits.device)
    shifts_K = torch.tensor(labels.shifts, dtype=torch.float32, device=logits.device)
    return logits.float() * scales_K + shifts_K


class CalibratedLabels(nn.Module):
    """A multi-label model whose logits are calibrated: (B, C, H, W) -> (B, K).

    Args:
        model: the model.
        labels: its scales and shifts.
    """

    def __init__(self, model: nn.Module, labels: LabelCalibration) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the calibrated logits."""
        return calibrated_logits(self.model(images_BCHW), self.labels)


def label_calibration_of(description: ModelDescription) -> LabelCalibration | None:
    """Return the scales and shifts of a multi-label model; None of any other."""
    if not description.is_multi_label:
        return None
    return description.label_calibration or LabelCalibration.none(len(description.classes))


def described_probabilities(logits: torch.Tensor, description: ModelDescription) -> torch.Tensor:
    """Return calibrated probabilities of logits (…, K), as a model's package computes them."""
    return class_probabilities(logits, description.temperature, label_calibration_of(description))
