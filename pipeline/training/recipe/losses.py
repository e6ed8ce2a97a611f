"""The training loss: cross-entropy or binary cross-entropy, of class indices or soft targets.

Shapes: B images of a batch, K classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from patchline.pipeline.training.config import TrainingConfig


def training_loss(
    logits_BK: torch.Tensor,
    targets: torch.Tensor,
    config: TrainingConfig,
    class_weights_K: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean loss per image of a batch, computed in float32.

    Weighted losses are divided by the number of images, not by the sum of their weights, so the
    loss of a batch is the mean of the losses of its parts.

    Args:
        logits_BK: the model's outputs.
        targets: class indices (B), or target probabilities (B, K), for example of mixed images.
        config: chooses the loss and its settings.
        class_weights_K: weight of each class; None for equal weights.
    """
    loss = _binary_cross_entropy if config.loss == "bce" else _cross_entropy
    return loss(logits_BK.float(), targets, config.label_smoothing or 0.0, class_weights_K)


def _cross_entropy(
    logits_BK: torch.Tensor,
    targets: torch.Tensor,
    smoothing: float,
    class_weights_K: torch.Tensor | None,
) -> torch.Tensor:
    total = functional.cross_entropy(
        logits_BK, targets, class_weights_K, label_smoothing=smoothing, reduction="sum"
    )
    return total / len(logits_BK)


def _binary_cross_entropy(
    logits_BK: torch.Tensor,
    targets: torch.Tensor,
    smoothing: float,
    class_weights_K: torch.Tensor | None,
) -> torch.Tensor:
    classes = logits_BK.shape[1]
    if targets.ndim == 1:
        targets = one_hot(targets, classes)
    targets_BK = targets.float()
    weights_B1 = None if class_weights_K is None else (targets_BK @ class_weights_K)[:, None]
    smoothed_BK = targets_BK * (1 - smoothing) + smoothing / classes
    return functional.binary_cross_entropy_with_logits(logits_BK, smoothed_BK, weights_B1)


def one_hot(labels_B: torch.Tensor, classes: int) -> torch.Tensor:
    """Return float32 rows (B, K) with a 1 for each class index.

    Unlike torch's function of this name, it never reads a value from the device.
    """
    return (labels_B[:, None] == torch.arange(classes, device=labels_B.device)).float()


def balanced_class_weights(
    labels_N: np.ndarray[tuple[int], np.dtype[np.int64]], classes: int
) -> torch.Tensor:
    """Return the inverse frequency of each class (K), 1 on average over the images.

    A class without images has the weight 0.
    """
    counts_K = np.bincount(labels_N, minlength=classes)
    weights_K = len(labels_N) / (np.count_nonzero(counts_K) * np.maximum(counts_K, 1))
    return torch.from_numpy(np.where(counts_K > 0, weights_K, 0.0)).float()
