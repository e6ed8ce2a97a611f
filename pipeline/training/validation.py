"""Validation: loss and accuracy of what is trained, on the validation split or its first images."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.training.training_data import TrainingData
from patchline.plugin_api import ImageSpec, Objective

_WARM_UP, _MEASURED = 16, 64
"""Images to measure the speed with."""


@dataclass
class Validator:
    """Predicts the first images of the validation split, and compares with their classes.

    Without classes, only the loss of the objective is computed.
    """

    data: TrainingData
    objective: Objective
    image: ImageSpec
    device: torch.device
    precision: str = "float32"
    """That of the training run; the finished model is judged in float32."""

    @property
    def images(self) -> int:
        """Size of the validation split."""
        return len(self.data.validation_rows)

    def metrics(self, model: nn.Module, images: int, compared: int) -> dict[str, Any]:
        """Return loss and accuracy of the first images, as fields of an `EpochRecord`.

        Args:
            model: the module that is trained; in evaluation mode afterwards as before.
            images: number of images to predict.
            compared: number of images by which the best validation is chosen.
        """
        outputs = self._outputs(model, images)
        labels_N = torch.from_numpy(self.data.labels[self.data.validation_rows[:images]])
        loss, accuracy = self._loss_and_accuracy(outputs, labels_N)
        metrics: dict[str, Any] = {
            "validation_images": images,
            "validation_loss": loss,
            "validation_accuracy": accuracy,
        }
        if compared < images:
            part = self._loss_and_accuracy(outputs[:compared], labels_N[:compared])
            metrics |= dict(zip(("compared_loss", "compared_accuracy"), part, strict=True))
        return metrics

    def speed(self, model: nn.Module) -> tuple[int, float]:
        """Predict a few images, and return their number and the seconds."""
        self._outputs(model, min(_WARM_UP, self.images))
        images, began = min(_MEASURED, self.images), time.monotonic()
        self._outputs(model, images)
        return images, max(time.monotonic() - began, 1e-9)

    def _loss_and_accuracy(
        self, outputs: torch.Tensor, labels_N: torch.Tensor
    ) -> tuple[float, float | None]:
        if self.data.classes:
            return loss_and_accuracy(outputs, labels_N)
        return float(self.objective.loss(outputs, labels_N)), None

    def _outputs(self, model: nn.Module, images: int) -> torch.Tensor:
        rows = self.data.validation_rows[:images]
        return predict_logits(
            model,
            self.data.images,
            rows,
            self.image,
            device=self.device,
            precision=self.precision,
        )


def loss_and_accuracy(logits_NK: torch.Tensor, labels_N: torch.Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy and the share of images classified correctly."""
    loss = functional.cross_entropy(logits_NK, labels_N)
    return float(loss), float((logits_NK.argmax(1) == labels_N).float().mean())
