"""The losses equal torch's own, for class indices and soft targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.losses import balanced_class_weights, training_loss
from tests.pipeline.training.trained_jobs import Make, opened

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 1, 3, 2, 1])
SOFT = torch.softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), 1)
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0])


def _loss(targets: torch.Tensor, weights: torch.Tensor | None = None, **settings: Any) -> float:
    return float(training_loss(LOGITS, targets, TrainingConfig(**settings), weights))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_losses_are_those_of_torch(smoothing: float) -> None:
    """Cross-entropy, and binary cross-entropy with smoothed answers to one question a class."""
    expected = functional.cross_entropy(LOGITS, SOFT, label_smoothing=smoothing)
    assert _loss(SOFT, label_smoothing=smoothing) == pytest.approx(float(expected))
    smoothed = (1 - smoothing) * SOFT + smoothing / 4
    expected = functional.binary_cross_entropy(torch.sigmoid(LOGITS), smoothed)
    found = _loss(SOFT, loss="bce", label_smoothing=smoothing)
    assert found == pytest.approx(float(expected))


def test_class_weights_scale_the_loss_of_each_image() -> None:
    """A weighted loss is the mean over the images of weight times loss."""
    plain = {"label_smoothing": 0.0}
    losses = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    expected = float((losses * WEIGHTS[LABELS]).mean())
    assert _loss(LABELS, WEIGHTS, **plain) == pytest.approx(expected)
    torchs = functional.cross_entropy(LOGITS, SOFT, WEIGHTS)  # of soft targets: over all images
    assert _loss(SOFT, WEIGHTS, **plain) == pytest.approx(float(torchs))
    one_hot = functional.one_hot(LABELS, 4).float()
    losses = functional.binary_cross_entropy_with_logits(LOGITS, one_hot, reduction="none").mean(1)
    expected = float((losses * WEIGHTS[LABELS]).mean())
    assert _loss(LABELS, WEIGHTS, loss="bce", **plain) == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_an_index_is_a_target_of_one(loss: str, weights: torch.Tensor | None) -> None:
    """Class indices and their one-hot vectors have the same loss."""
    one_hot = functional.one_hot(LABELS, 4).float()
    assert _loss(LABELS, weights, loss=loss) == pytest.approx(_loss(one_hot, weights, loss=loss))


def test_balanced_weights_are_inverse_frequencies() -> None:
    """Three times as many images, a third of the weight; 1 on average over the images."""
    labels = np.array([0] * 6 + [1] * 2)
    weights = balanced_class_weights(labels, 3)
    assert weights.tolist() == pytest.approx([8 / 12, 8 / 4, 0.0])
    assert float(weights[labels].mean()) == pytest.approx(1.0)


def test_the_settings_decide_the_loss_of_a_training(make: Make) -> None:
    """The step of a training uses the class frequencies of its training split."""
    settings = {"class_weights": "balanced", "loss": "bce"}
    training = opened(make(training=settings))
    labels = training.data.labels[training.data.training.rows]
    logits, targets = torch.randn(len(labels), 3), torch.from_numpy(labels)
    weights = balanced_class_weights(labels, 3)
    expected = training_loss(logits, targets, TrainingConfig.model_validate(settings), weights)
    assert torch.equal(training.objective.loss(logits, targets), expected)
