"""Models whose logits are calibrated: one, or several whose probabilities are averaged.

Shapes: B images, K classes or labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.models.model_description import Calibration


def class_probabilities(
    logits: torch.Tensor, calibration: Calibration, *, dim: int = -1
) -> torch.Tensor:
    """Return calibrated probabilities of logits (…, K).

    Args:
        logits: the logits of a model (…, K).
        calibration: the calibration of the model; that of a multi-label model has sigmoids, any
            other a softmax.
        dim: the axis K by its number, which is the last one.
    """
    scaled = calibrate_logits(logits, calibration)
    if isinstance(calibration, LabelCalibration):
        return torch.sigmoid(scaled)
    return torch.softmax(scaled, dim=dim)


def calibrate_logits(logits: torch.Tensor, calibration: Calibration) -> torch.Tensor:
    """Return the logits (…, K) whose softmax, or sigmoids, are the calibrated probabilities."""
    scales, shifts = calibration.scaling(logits.shape[-1])
    scales_K = torch.tensor(scales, dtype=torch.float32, device=logits.device)
    shifts_K = torch.tensor(shifts, dtype=torch.float32, device=logits.device)
    return logits.float() * scales_K + shifts_K


class CalibratedModel(nn.Module):
    """A model whose logits are calibrated: (B, C, H, W) -> (B, K).

    Args:
        model: the model.
        calibration: the calibration of its logits.
    """

    def __init__(self, model: nn.Module, calibration: Calibration) -> None:
        super().__init__()
        self.model, self.calibration = model, calibration

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the calibrated logits."""
        return calibrate_logits(self.model(images_BCHW), self.calibration)


class Ensemble(nn.Module):
    """Average the probabilities of models with the same classes: (B, C, H, W) -> logits (B, K).

    The logits are those whose softmax, or with several labels sigmoid, is the average.

    Args:
        models: the members.
        calibrations: the calibration of each member's logits.
        num_classes: K, the number of classes or labels.
    """

    scales_MK: torch.Tensor
    shifts_MK: torch.Tensor

    def __init__(
        self, models: Sequence[nn.Module], calibrations: Sequence[Calibration], num_classes: int
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        self.is_multi_label = isinstance(calibrations[0], LabelCalibration)
        scaling = [each.scaling(num_classes) for each in calibrations]
        self.register_buffer("scales_MK", torch.tensor([scales for scales, _ in scaling]))
        self.register_buffer("shifts_MK", torch.tensor([shifts for _, shifts in scaling]))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of the average probabilities."""
        return self.mixed([member(images_BCHW) for member in self.members])

    def mixed(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits of the average of the members' probabilities.

        Args:
            logits: the logits of each member, with the axis K last.
        """
        scaled = torch.stack(
            [
                each.float() * scales_K + shifts_K
                for each, scales_K, shifts_K in zip(
                    logits, self.scales_MK, self.shifts_MK, strict=True
                )
            ]
        )
        if not self.is_multi_label:
            logs = torch.log_softmax(scaled, dim=-1)
            return torch.logsumexp(logs, dim=0) - math.log(len(logits))
        with_label = torch.logsumexp(nn.functional.logsigmoid(scaled), dim=0)
        without = torch.logsumexp(nn.functional.logsigmoid(-scaled), dim=0)
        return with_label - without


def scale_by_class(weights: dict[str, torch.Tensor], num_classes: int) -> None:
    """Replace the temperature of each member, as older packages have it, by a scale per class."""
    temperatures_M = weights.pop("temperatures_M", None)
    if temperatures_M is not None:
        weights["scales_MK"] = (1 / temperatures_M)[:, None].repeat(1, num_classes)
        weights["shifts_MK"] = torch.zeros_like(weights["scales_MK"])
