"""The training loss."""

from __future__ import annotations

import torch
from torch.nn import functional

from pipeline.training.config import TrainingConfig


def training_loss(
    logits_BK: torch.Tensor, targets: torch.Tensor, config: TrainingConfig
) -> torch.Tensor:
    """Return the mean loss of a batch, computed in float32.

    Args:
        logits_BK: the model's outputs.
        targets: class indices (B), or a probability for each class (B, K).
        config: chooses the loss and its settings.
    """
    return functional.cross_entropy(
        logits_BK.float(), targets, label_smoothing=config.label_smoothing
    )
