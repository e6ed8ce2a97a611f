"""Validation: loss and accuracy of what is trained, on the validation split or its first images.

Of images with sets of labels it is the mean average precision (mAP) in place of the accuracy.

Each rank predicts a part of the images, and each image is predicted once. Where the training is
compiled, the averaged weights are, too: in a single shape, to which the last batch is filled up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.training_data import Integers, TrainingData, Truth
from patchline.plugin_api import ImageSpec, Objective

_MOST_IMAGES = 256
"""Maximum number of images in a batch."""
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
    """Precision of the training run; the finished model is judged in float32."""
    ranks: Ranks = field(default_factory=Ranks)
    fills_batches: bool = False
    """Whether each batch has the same number of images, for compiled models."""

    def compile(self, model: nn.Module) -> None:
        """Compile a model for `metrics` in place, and let it predict, so that later calls do not.

        What cannot be compiled runs as it is.

        Args:
            model: the module that is trained; see `metrics`.
        """
        self.fills_batches = True
        model.compile(dynamic=False)
        self._outputs(model, self.data.validation_rows[:1])

    @property
    def images(self) -> int:
        """Size of the validation split."""
        return len(self.data.validation_rows)

    def metrics(self, model: nn.Module, images: int, compared: int) -> dict[str, Any]:
        """Return loss and accuracy of the first images, as fields of an `EpochRecord`.

        All ranks call this together, and get the same.

        Args:
            model: the module that is trained; in evaluation mode afterwards as before.
            images: number of images to predict.
            compared: number of images by which the best validation is chosen.
        """
        mine = self.ranks.share(images)
        rows = self.data.validation_rows[mine]
        outputs = self._outputs(model, rows)
        if self.data.label_sets_NK is not None:
            return self._of_sets(outputs, mine, images, compared)
        loss, accuracy = self._loss_and_accuracy(outputs, rows, images)
        metrics: dict[str, Any] = {
            "validation_images": images,
            "validation_loss": loss,
            "validation_accuracy": accuracy,
        }
        if compared < images:
            own = max(0, min(mine.stop, compared) - mine.start)
            part = self._loss_and_accuracy(outputs[:own], rows[:own], compared)
            metrics |= dict(zip(("compared_loss", "compared_accuracy"), part, strict=True))
        return metrics

    def speed(self, model: nn.Module, clock: Callable[[], float]) -> tuple[int, float]:
        """Predict a few images, and return their number and the seconds.

        At least a whole batch where batches are filled up: fewer images take as long.

        Args:
            model: the module that is trained; see `metrics`.
            clock: a function that returns the seconds since it was called last.
        """
        self.metrics(model, min(_WARM_UP, self.images), self.images)
        measured = max(_MEASURED, self._filled_batch) if self.fills_batches else _MEASURED
        images, _ = min(measured * self.ranks.size, self.images), clock()
        self.metrics(model, images, images)
        return images, max(clock(), 1e-9)

    def _of_sets(
        self, outputs: torch.Tensor, mine: slice, images: int, compared: int
    ) -> dict[str, Any]:
        """Return loss and mAP, for which every rank needs the logits of all."""
        logits_NK = torch.zeros(images, len(self.data.classes))
        if len(outputs):
            logits_NK[mine] = outputs.float()
        logits_NK = self.ranks.sum(logits_NK)
        sets_NK = self.data.truth(self.data.validation_rows[:images])
        whole = quality(logits_NK, sets_NK)
        part = quality(logits_NK[:compared], sets_NK[:compared])
        metrics: dict[str, Any] = {
            "validation_images": images,
            **whole.of_record(),
            "map_positives": part.map_positives,
        }
        if compared < images:
            metrics |= {"compared_loss": part.loss, "compared_map": part.map}
        return metrics

    def _loss_and_accuracy(
        self, outputs: torch.Tensor, rows: Integers, images: int
    ) -> tuple[float, float | None]:
        """Return the means over so many images of all ranks, of which this one has some rows."""
        sums_2 = torch.zeros(2, dtype=torch.float64)
        if len(rows):
            labels_N = torch.from_numpy(self.data.labels[rows])
            if self.data.classes:
                mean = functional.cross_entropy(outputs, labels_N)
                sums_2[1] = (outputs.argmax(1) == labels_N).sum()
            else:
                mean = self.objective.loss(outputs, labels_N)
            sums_2[0] = mean.double() * len(rows)
        loss, accuracy = (self.ranks.sum(sums_2) / images).float().tolist()
        return loss, accuracy if self.data.classes else None

    @property
    def _filled_batch(self) -> int:
        """Images of each batch of a compiled model."""
        return min(_MOST_IMAGES, -(-self.images // self.ranks.size))

    def _outputs(self, model: nn.Module, rows: Integers) -> torch.Tensor:
        if not len(rows):
            return torch.empty(0)
        batch_size, predicted = _MOST_IMAGES, rows
        if self.fills_batches:
            batch_size = self._filled_batch
            predicted = np.pad(rows, (0, -len(rows) % batch_size), mode="edge")
        outputs = predict_logits(
            model,
            self.data.images,
            predicted,
            self.image,
            batch_size=batch_size,
            device=self.device,
            precision=self.precision,
        )
        return outputs[: len(rows)]


class PredictionQuality(NamedTuple):
    """How well logits predict the truth."""

    loss: float
    """Mean cross-entropy; of sets of labels the mean binary cross-entropy of all labels."""
    accuracy: float | None
    """Share of images classified correctly; None for sets of labels."""
    map: float | None = None
    """Mean average precision of sets of labels; see `MeanAveragePrecision`."""
    map_positives: float = 0.0

    def of_record(self) -> dict[str, Any]:
        """Return what an `EpochRecord` holds of it."""
        return {
            "validation_loss": self.loss,
            "validation_accuracy": self.accuracy,
            "validation_map": self.map,
        }

    def of_result(self) -> dict[str, Any]:
        """Return what a `TrainResult` holds of it."""
        return {f"best_{name}": value for name, value in self.of_record().items()}


def quality(logits_NK: torch.Tensor, truth: Truth) -> PredictionQuality:
    """Return how well logits predict class indices (N), or sets of labels (N, K)."""
    if truth.ndim == 2:  # noqa: PLR2004 - sets
        targets_NK = torch.from_numpy(truth).float()
        loss = functional.binary_cross_entropy_with_logits(logits_NK, targets_NK)
        mean = mean_average_precision(logits_NK.numpy(), truth)
        return PredictionQuality(float(loss), None, mean.value, mean.positives)
    labels_N = torch.from_numpy(truth)
    loss = functional.cross_entropy(logits_NK, labels_N)
    return PredictionQuality(float(loss), float((logits_NK.argmax(1) == labels_N).float().mean()))
