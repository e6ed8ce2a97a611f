"""The training loss."""

from __future__ import annotations

import torch
from torch.nn import functional

from pipeline.training.config import TrainingConfig


def training_loss(
    logits_BK: torch.Tensor, labels_B: torch.Tensor, config: TrainingConfig
) -> torch.Tensor:
    """Return the mean loss of a batch, computed in float32.

    Args:
        logits_BK: the model's outputs.
        labels_B: class indices.
        config: chooses the loss and its settings.
    """
    return functional.cross_entropy(
        logits_BK.float(), labels_B, label_smoothing=config.label_smoothing
    )
