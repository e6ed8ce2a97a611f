"""The verdict on one model and one split: figures with intervals, and where it goes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.atomic_files import write_text
from pipeline.evaluation.predictions import SplitPredictions, load_split
from pipeline.metrics.classification import (
    ClassFigures,
    by_class,
    confusion_matrix,
    fit_temperature,
    metrics,
    softmax,
)
from pipeline.metrics.intervals import MetricEstimate
from pipeline.section import Section

_GALLERY_SIZE = 24


class ImageError(Section):
    """An image that the model got wrong."""

    path: str
    row: int
    """Of the prepared store."""
    label: str
    predicted: str
    probability: float
    """That the model gave to its answer."""
    label_probability: float
    """That the model gave to the true class."""


class EvaluationReport(Section):
    """Everything that an evaluation found."""

    name: str
    split: str
    data_fingerprint: str
    classes: tuple[str, ...]
    metrics: dict[str, MetricEstimate]
    """By name, the split in front: `test/accuracy`."""
    by_class: tuple[ClassFigures, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes, columns predicted ones."""
    most_confident_errors: tuple[ImageError, ...]
    errors: int
    temperature: float
    """Fitted on the validation split."""

    @property
    def warning(self) -> str:
        """A sentence if the model is not clearly better than naming one class for everything."""
        accuracy = self.metrics[f"{self.split}/accuracy"]
        commonest = max(self.by_class, key=lambda figures: figures.images)
        share = commonest.images / accuracy.n
        if accuracy.low > share:
            return ""
        return (
            f"the model is not clearly better than always answering '{commonest.name}', which is "
            f"right for {share:.1%}: train longer (training.epochs), or on more images"
        )


def evaluate(
    predictions_file: Path,
    *,
    name: str,
    classes: tuple[str, ...],
    data_fingerprint: str,
    split: str = "test",
) -> EvaluationReport:
    """Compute the report of one split; probabilities are calibrated on the validation split."""
    validation = load_split(predictions_file, "validation")
    temperature = fit_temperature(validation.logits_NK, validation.labels_N)
    chosen = load_split(predictions_file, split)
    predicted = chosen.logits_NK.argmax(axis=1)
    confusion = confusion_matrix(chosen.labels_N, predicted, len(classes))
    figures = metrics(chosen.logits_NK, chosen.labels_N, temperature)
    return EvaluationReport(
        name=name,
        split=split,
        data_fingerprint=data_fingerprint,
        classes=classes,
        metrics={f"{split}/{key}": value for key, value in figures.items()},
        by_class=by_class(confusion, classes),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion),
        most_confident_errors=_confident_errors(chosen, classes, temperature),
        errors=int((predicted != chosen.labels_N).sum()),
        temperature=temperature,
    )


def save(report: EvaluationReport, file: Path) -> None:
    """Write the report as JSON."""
    write_text(file, report.model_dump_json(indent=2) + "\n")


def _confident_errors(
    predictions: SplitPredictions, classes: tuple[str, ...], temperature: float
) -> tuple[ImageError, ...]:
    """Return the errors that the model was surest of, surest first."""
    probabilities = softmax(predictions.logits_NK, temperature)
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    wrong = np.flatnonzero(predicted != predictions.labels_N)
    surest = wrong[np.argsort(-confidence[wrong], kind="stable")][:_GALLERY_SIZE]
    return tuple(
        ImageError(
            path=predictions.paths[i],
            row=int(predictions.rows_N[i]),
            label=classes[predictions.labels_N[i]],
            predicted=classes[predicted[i]],
            probability=float(confidence[i]),
            label_probability=float(probabilities[i, predictions.labels_N[i]]),
        )
        for i in surest
    )
