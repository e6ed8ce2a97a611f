"""Several models as one: the average of their calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from patchline.pipeline.metrics.label_calibration import LabelCalibration


class Ensemble(nn.Module):
    """Average the probabilities of models with the same classes: (B, C, H, W) -> logits (B, K).

    The logits are those whose softmax, or with several labels sigmoid, is the average.

    Args:
        models: the members.
        temperatures: divides the logits of each member before its softmax.
        calibrations: of multi-label members: the scales and shifts of each before its sigmoid.
    """

    temperatures_M: torch.Tensor
    scales_MK: torch.Tensor
    shifts_MK: torch.Tensor

    def __init__(
        self,
        models: Sequence[nn.Module],
        temperatures: Sequence[float] = (),
        *,
        calibrations: Sequence[LabelCalibration] = (),
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        self.is_multi_label = bool(calibrations)
        if calibrations:
            self.register_buffer("scales_MK", torch.tensor([each.scales for each in calibrations]))
            self.register_buffer("shifts_MK", torch.tensor([each.shifts for each in calibrations]))
            return
        values = torch.tensor(temperatures) if temperatures else torch.ones(len(models))
        self.register_buffer("temperatures_M", values)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logits of the average probabilities."""
        if self.is_multi_label:
            return self.mixed([member(images_BCHW) for member in self.members])
        logs = [
            torch.log_softmax(member(images_BCHW).float() / temperature, dim=1)
            for member, temperature in zip(self.members, self.temperatures_M, strict=True)
        ]
        return torch.logsumexp(torch.stack(logs), dim=0) - math.log(len(logs))

    def mixed(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits of the average of multi-label members' probabilities.

        Args:
            logits: of each member, with the axis K last.
        """
        scaled = torch.stack(
            [
                each.float() * scales_K + shifts_K
                for each, scales_K, shifts_K in zip(
                    logits, self.scales_MK, self.shifts_MK, strict=True
                )
            ]
        )
        with_label = torch.logsumexp(nn.functional.logsigmoid(scaled), dim=0)
        without = torch.logsumexp(nn.functional.logsigmoid(-scaled), dim=0)
        return with_label - without
