"""The training losses: of one label for each image, and of several.

Of several labels, each one is a question of its own, answered by yes or no. A target between 0 and
1, as mixed images have, counts as so much of a yes and the rest of a no.

Shapes: N images, B of a batch, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from patchline.pipeline.terminal_words import few_names
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
        config: the training's settings, which choose the loss.
        class_weights_K: weight of each class; None for equal weights.
    """
    logits_BK, smoothing = logits_BK.float(), config.label_smoothing or 0.0
    if config.loss != "bce":
        total = functional.cross_entropy(
            logits_BK, targets, class_weights_K, label_smoothing=smoothing, reduction="sum"
        )
        return total / len(logits_BK)
    classes = logits_BK.shape[1]
    targets_BK = one_hot(targets, classes) if targets.ndim == 1 else targets.float()
    weights_B1 = None if class_weights_K is None else (targets_BK @ class_weights_K)[:, None]
    smoothed_BK = targets_BK * (1 - smoothing) + smoothing / classes
    return functional.binary_cross_entropy_with_logits(logits_BK, smoothed_BK, weights_B1)


def one_hot(labels_B: torch.Tensor, classes: int) -> torch.Tensor:
    """Return float32 rows (B, K) with a 1 for each class index.

    Unlike torch's function of this name, it never reads a value from the device.
    """
    return (labels_B[:, None] == torch.arange(classes, device=labels_B.device)).float()


def compute_class_weights(
    labels_N: np.ndarray[tuple[int], np.dtype[np.int64]], classes: int
) -> torch.Tensor:
    """Return the inverse frequency of each class (K), 1 on average over the images.

    A class without images has the weight 0.
    """
    counts_K = np.bincount(labels_N, minlength=classes)
    weights_K = len(labels_N) / (np.count_nonzero(counts_K) * np.maximum(counts_K, 1))
    return torch.from_numpy(np.where(counts_K > 0, weights_K, 0.0)).float()


MOST_WEIGHT = 20.0
"""Largest weight of a label where it is present: few images that count more teach noise."""
_FOCUSING = 4.0
"""Focusing exponent of absent labels in the asymmetric loss; that of present labels is 0, so their
factor is 1 (arXiv 2009.14119)."""
_CLIP = 0.05
"""Probability of an absent label up to which it costs nothing in the asymmetric loss (arXiv
2009.14119)."""


def set_loss(
    logits_BK: torch.Tensor,
    targets_BK: torch.Tensor,
    config: TrainingConfig,
    positive_weights_K: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean loss of the labels of all images of a batch, computed in float32.

    Args:
        logits_BK: the model's outputs.
        targets_BK: the sets of labels: 1 where an image has a label, otherwise 0, or in between.
        config: the training's settings, which choose the loss.
        positive_weights_K: weight of the loss where a label is present; None for 1.
    """
    logits_BK, targets_BK = logits_BK.float(), targets_BK.float()
    smoothing = config.label_smoothing or 0.0
    if smoothing:
        targets_BK = targets_BK * (1 - smoothing) + smoothing / 2
    if config.loss != "asymmetric":
        return functional.binary_cross_entropy_with_logits(
            logits_BK, targets_BK, pos_weight=positive_weights_K
        )
    present_BK, absent_BK = _asymmetric(logits_BK)
    if positive_weights_K is not None:
        present_BK = present_BK * positive_weights_K
    return (targets_BK * present_BK + (1 - targets_BK) * absent_BK).mean()


def _asymmetric(logits_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each label costs where it is present, and where it is absent.

    These are the two sides of the asymmetric loss (arXiv 2009.14119, section 3): the probability of
    an absent label is lowered by the clip before its loss is taken, which is multiplied by the
    focusing factor. The factor has a gradient too, as in the paper's analysis of it.
    """
    shifted_BK = (logits_BK.sigmoid() - _CLIP).clamp(min=0.0)
    return -functional.logsigmoid(logits_BK), -torch.log1p(-shifted_BK) * shifted_BK**_FOCUSING


def positive_weights(sets_NK: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    """Return the number of images without each label over those with it (K), at most 20.

    A label that no image has gets 1: there is nothing to weigh.
    """
    positives_K = sets_NK.sum(0, dtype=np.int64)
    ratios_K = (len(sets_NK) - positives_K) / np.maximum(positives_K, 1)
    weights_K = np.where(positives_K > 0, np.minimum(ratios_K, MOST_WEIGHT), 1.0)
    # a label of all images would not be learned at all
    return torch.from_numpy(np.where(weights_K > 0, weights_K, 1.0)).float()


def sentence_on_limited_weights(
    sets_NK: np.ndarray[Any, np.dtype[np.uint8]], labels: Sequence[str]
) -> str:
    """Return which labels are so rare that their weight is limited; empty if none is."""
    positives_K, images = sets_NK.sum(0, dtype=np.int64), len(sets_NK)
    rare = [
        f"{label} ({count:,} of {images:,})"
        for label, count in zip(labels, positives_K.tolist(), strict=True)
        if count and (images - count) / count > MOST_WEIGHT
    ]
    if not rare:
        return ""
    return (
        f"training.class_balance weights weighs a label at most {MOST_WEIGHT:g} times where it "
        f"is present; so rare that it would be more: {few_names(rare)}"
    )
