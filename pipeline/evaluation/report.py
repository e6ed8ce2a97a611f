"""The evaluation report of one model on one split: metrics with intervals, and the errors.

Everything is computed from calibrated probabilities, so that a run and `patchline evaluate` agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from pydantic import Field

from patchline.pipeline.data.manifests.manifest import contents_fingerprint
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.answers_report import AnswersReport
from patchline.pipeline.evaluation.config import (
    GALLERY_SIZE,
    SMALL_SAMPLE,
    EvaluationConfig,
    before_image,
)
from patchline.pipeline.evaluation.galleries import GalleryImage
from patchline.pipeline.evaluation.headline import Headline
from patchline.pipeline.evaluation.metrics.calibration import (
    ReliabilityBin,
    TopProbabilities,
    calibration_error_of,
    contradiction,
    reliability_of,
)
from patchline.pipeline.evaluation.metrics.classification import (
    ClassMetrics,
    by_class,
    metrics,
)
from patchline.pipeline.evaluation.metrics.confusion_matrix import ConfusionCells
from patchline.pipeline.evaluation.metrics.curve_areas import Areas
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate, share
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.robustness import Robustness
from patchline.pipeline.evaluation.visual_guide.covering_result import CoveringTest
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.terminal_words import counted

Array = np.ndarray[Any, Any]
_MOST_MATRIX_CLASSES = 1000
_LEAST_PROBABILITY = 1e-300
_MOST_VALUES = 12
_QUARTERS = 4
_UNITS = {"size": "px", "width": "px", "height": "px"}


class ImageSubset(FrozenModel):
    """A subset of the images."""

    column: str
    value: str
    images: int
    small: bool
    """Whether there are fewer than 30 images."""
    differs: bool
    """Whether the interval of its metric excludes that of all images."""


class Slice(ImageSubset):
    """A subset of the images, and the accuracy on it."""

    accuracy: MetricEstimate

    @property
    def metric(self) -> MetricEstimate:
        """What is compared with that of all images."""
        return self.accuracy


def slices(predictions: Predictions, config: EvaluationConfig) -> tuple[Slice, ...]:
    """Return the slices by each chosen column; a column with one value has none.

    Args:
        predictions: predictions for all images of the report.
        config: the settings, which name the columns.
    """
    right_N, groups = predictions.predicted == predictions.labels, predictions.groups

    def accuracy(chosen_N: Array) -> MetricEstimate:
        return share(right_N[chosen_N], groups_within(chosen_N, groups))

    measured = measure_parts(predictions.table, config, accuracy, float(right_N.mean()))
    return tuple(Slice(**part, accuracy=estimate) for part, estimate, _ in measured)


def groups_within(chosen_N: Array, groups: ImageGroups | None) -> ImageGroups | None:
    """Return the groups of the images of a slice, given by a mask (N).

    A slice of a single group, such as a camera, is about that group: its images are its sample.
    """
    own = groups.among(np.flatnonzero(chosen_N)) if groups is not None else None
    return own if own is not None and own.count > 1 else None


def measure_parts(
    table: pd.DataFrame,
    config: EvaluationConfig,
    metric: Callable[[Array], MetricEstimate],
    overall: float,
) -> Iterator[tuple[dict[str, Any], MetricEstimate, Array]]:
    """Yield the fields of `ImageSubset`, the metric and the mask of each subset by each column.

    Args:
        table: predictions of N images.
        config: the settings, which name the columns; a column with a single value has no subsets.
        metric: returns the metric of the images that a mask (N) chooses.
        overall: the metric of all images.
    """
    for column in config.slices:
        parts = list(_parts(column, _values(table, column)))
        if len(parts) < 2:  # noqa: PLR2004 - one part is no division
            continue
        for value, chosen_N in parts:
            estimate, images = metric(chosen_N), int(chosen_N.sum())
            yield (
                {
                    "column": column,
                    "value": value,
                    "images": images,
                    "small": images < SMALL_SAMPLE,
                    "differs": not estimate.low <= overall <= estimate.high,
                },
                estimate,
                chosen_N,
            )


def find_undivided(table: pd.DataFrame, config: EvaluationConfig) -> dict[str, str]:
    """Return the chosen columns that have one value for all images, with that value."""
    reasons = {}
    for column in config.slices:
        parts = list(_parts(column, _values(table, column)))
        if len(parts) == 1:
            reasons[column] = parts[0][0]
    return reasons


def _values(table: pd.DataFrame, column: str) -> pd.Series[Any]:
    if column == "size":
        return table[["width", "height"]].min(axis=1)
    if column == "folder":
        return table["path"].map(lambda path: str(PurePosixPath(path).parent))
    return table[column]


def _parts(column: str, values: pd.Series[Any]) -> Iterator[tuple[str, Array]]:
    """Yield the name of each slice and a mask of its images (N)."""
    if pd.api.types.is_numeric_dtype(values):
        yield from _quarters(values.to_numpy(), column)
    else:
        yield from _most_frequent(values.fillna("").astype(str))


def _quarters(values_N: Array, column: str) -> Iterator[tuple[str, Array]]:
    """Divide numbers at their quartiles; up to four distinct numbers are kept as they are."""
    distinct = np.unique(values_N)
    if len(distinct) <= _QUARTERS:
        codes_N = np.searchsorted(distinct, values_N)
    else:
        inner = np.quantile(values_N, np.arange(1, _QUARTERS) / _QUARTERS)
        codes_N = np.searchsorted(np.unique(inner), values_N, side="left")
    for code in np.unique(codes_N):
        chosen_N = codes_N == code
        yield _range_text(values_N[chosen_N].min(), values_N[chosen_N].max(), column), chosen_N


def _range_text(low: float, high: float, column: str) -> str:
    first, last = _number_text(low, column), _number_text(high, column)
    if first == last:
        return first
    unit = f" {_UNITS[column]}" if column in _UNITS else ""
    return f"{first.removesuffix(unit)} to {last}"


def _number_text(number: float, column: str) -> str:
    if column == "bytes":
        for unit, size in (("MB", 1e6), ("kB", 1e3)):
            if number >= size:
                return f"{number / size:.1f} {unit}"
        return f"{number:.0f} bytes"
    return f"{number:.0f} {_UNITS[column]}" if column in _UNITS else f"{number:g}"


def _most_frequent(values: pd.Series[Any]) -> Iterator[tuple[str, Array]]:
    """Keep the most frequent values in descending order, and merge the others."""
    counts = values.value_counts(sort=False)
    ordered = sorted(counts.index, key=lambda value: (-counts[value], value))
    kept = ordered if len(ordered) <= _MOST_VALUES else ordered[: _MOST_VALUES - 1]
    for value in kept:
        yield value or "none given", (values == value).to_numpy()
    if len(kept) < len(ordered):
        others = f"{len(ordered) - len(kept)} others"
        yield others, (~values.isin(kept)).to_numpy()


class ModelReport(FrozenModel, ABC):
    """The result of an evaluation on one split."""

    name: str
    split: str
    data_fingerprint: str
    images_fingerprint: str = ""
    """Version of the images of this report: equal for two models that saw the same ones."""
    images: int
    groups: int | None = None
    """Number of groups that the images form, such as patients; None if no two are of one group."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of the model's outputs."""
    metrics: dict[str, MetricEstimate]
    """Metrics by name, prefixed with the split: `test/accuracy`."""
    computed_by: str = ""
    """What computed the probabilities, in words."""
    reliability: tuple[ReliabilityBin, ...]
    """Reliability of the calibrated probabilities."""
    uncalibrated_reliability: tuple[ReliabilityBin, ...]
    """Reliability without calibration."""
    uncalibrated_ece: MetricEstimate
    """Expected calibration error without calibration."""
    undivided: dict[str, str] = Field(default_factory=dict)
    """Requested columns that have one value for all images, with that value."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the model has seen are recorded, so that these images are not among
    them."""
    covering_test: CoveringTest | None = None
    """Whether maps of attention and gradient mean anything for this model; only of runs."""
    config: EvaluationConfig

    @property
    def corrupted_metrics(self) -> dict[str, MetricEstimate]:
        """Metrics on corrupted images by name, without the split; empty if there are none."""
        return {}

    @property
    def with_robustness(self) -> Self:
        """The same report, whose metrics include those on corrupted images."""
        further = {f"{self.split}/{key}": value for key, value in self.corrupted_metrics.items()}
        if not further:
            return self
        return self.model_copy(update={"metrics": {**self.metrics, **further}})

    @property
    def groups_note(self) -> str:
        """What the groups of the images mean for the intervals; empty if there are none."""
        if self.groups is None:
            return ""
        return (
            f"these {self.images:,} images form {counted(self.groups, 'group')}: the intervals "
            "take groups, not images, as independent, so they are wider than those of as many "
            "images without groups"
        )

    @property
    @abstractmethod
    def described(self) -> dict[str, Any]:
        """The fields of a model's description about what its package answers."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not known or not calibrated, as a run says them."""

    @property
    @abstractmethod
    def headline(self) -> Headline:
        """The metric by which models are compared; each kind of report has its own."""


class ReportSubject(NamedTuple):
    """The model and the images that a report is about."""

    name: str
    """Name of the model."""
    classes: tuple[str, ...]
    """Classes or labels in the order of the model's outputs; some may have no image."""
    split: str
    """Name of the split; the prefix of the metric names."""
    data_fingerprint: str
    """Version of the data."""
    computed_by: str = ""
    """What computed the probabilities, in words."""


def check_images(predictions: Predictions, split: str) -> None:
    """Refuse to report on nothing.

    Raises:
        DataError: if there are no images.
    """
    if predictions.table.empty:
        raise DataError(
            f"There is no {before_image(split)}image to report on. Choose a split that has images."
        )


def build_shared_fields(
    predictions: Predictions,
    subject: ReportSubject,
    config: EvaluationConfig,
    estimates: Mapping[str, MetricEstimate],
    rows: Sequence[Any],
    calibration: TemperatureFit | LabelCalibration,
    answered: tuple[TopProbabilities, TopProbabilities],
) -> dict[str, Any]:
    """Return the fields that a report has whatever the task is.

    Args:
        predictions: predictions of exactly the images to report on.
        subject: the model and the images.
        config: contents of the report besides the metrics.
        estimates: the metrics.
        rows: metrics of each class or label.
        calibration: the calibration of the probabilities.
        answered: probabilities whose reliability is reported, with the calibration and without.
    """
    split, table = subject.split, predictions.table
    kind = f"{before_image(split)}image"
    known = [row.expected for row in rows if row.expected]
    off = contradiction(subject.classes, known, estimates["ece"], kind)
    now, before = answered
    return {
        **subject._asdict(),
        "images_fingerprint": contents_fingerprint(table),
        "images": len(table),
        "groups": of_images.count if (of_images := predictions.groups) else None,
        "metrics": {f"{split}/{key}": value for key, value in estimates.items()},
        "calibration": calibration.model_copy(update={"off": off}),
        "reliability": reliability_of(now),
        "uncalibrated_reliability": reliability_of(before),
        "uncalibrated_ece": calibration_error_of(before),
        "undivided": find_undivided(table, config),
        "config": config,
    }


class EvaluationReport(ModelReport):
    """The result of an evaluation of a model whose images have one label."""

    by_class: tuple[ClassMetrics, ...]
    """Metrics of each class, in the order of `classes`."""
    confusion: tuple[tuple[int, ...], ...]
    """Confusion matrix: rows are true classes, columns predicted ones; empty with more than 1,000
    classes."""
    confusion_cells: tuple[tuple[int, int, int], ...] = ()
    """Non-zero cells of the confusion matrix, with more than 1,000 classes: index of the true
    class, index of the predicted class, and number of images."""
    errors: int
    most_confident_errors: tuple[GalleryImage, ...]
    least_certain: tuple[GalleryImage, ...]
    """Images with the smallest margin between the two most probable classes, the smallest first."""
    likely_label_errors: tuple[GalleryImage, ...]
    """Labels flagged by confident learning, most suspicious first."""
    suspected_labels: int
    """Total number of flagged labels."""
    calibration: TemperatureFit
    """Temperature and bias, fitted on the validation split of the training data, whether that
    determines them, and what these images show against the probabilities."""
    slices: tuple[Slice, ...]
    answers: AnswersReport | None = None
    """Prediction sets and warnings on these images; None of a model without rules for them."""
    robustness: Robustness | None = None
    """Accuracy on corrupted versions of a sample of these images; None if it was not asked for."""

    @property
    def corrupted_metrics(self) -> dict[str, MetricEstimate]:
        """Accuracy on corrupted images by name, without the split."""
        return self.robustness.metrics if self.robustness else {}

    @property
    def described(self) -> dict[str, Any]:
        """The calibration, and rules for sets and warnings."""
        rules = self.answers.rules if self.answers else None
        fit = self.calibration
        return {"temperature": fit.temperature, "calibration": fit, "answers": rules}

    @property
    def accuracy(self) -> MetricEstimate:
        """Share of the images whose most probable class is the true class."""
        return self.metrics[f"{self.split}/accuracy"]

    @property
    def headline(self) -> Headline:
        """Accuracy, by which models are compared."""
        return Headline("accuracy", self.accuracy)

    @property
    def cells(self) -> ConfusionCells:
        """The cells of the confusion matrix that are not 0."""
        if self.confusion:
            return ConfusionCells.of_matrix(self.confusion)
        rows, columns, counts = np.array(self.confusion_cells, np.int64).T
        return ConfusionCells(rows, columns, counts, len(self.classes))

    @property
    def commonest(self) -> tuple[str, float]:
        """The class with the most images, and the accuracy of always predicting it."""
        most = max(self.by_class, key=lambda row: row.images)
        return most.name, most.images / self.accuracy.n

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether the probabilities are calibrated, and what balanced classes mean for them."""
        calibration = self.calibration
        unknown = "" if calibration.is_calibrated else f"calibration: {calibration.sentence()}"
        return tuple(filter(None, (unknown, self.note_on_balance)))

    @property
    def note_on_balance(self) -> str:
        """What the labels of a model would be without its bias; empty of one that has none."""
        known = [row for row in self.by_class if row.balanced_recall is not None]
        if not known:
            return ""
        rarest = min(known, key=lambda row: row.images)
        mean = sum(row.balanced_recall or 0.0 for row in known) / len(known)
        return (
            "the training balanced the classes, and the probabilities are corrected for that: a "
            f"label is the most probable class, which gives a balanced accuracy of "
            f"{self.metrics[f'{self.split}/balanced_accuracy'].value:.1%} and '{rarest.name}' a "
            f"recall of {rarest.recall.value:.1%}. To weigh the classes equally, as in training, "
            "divide each probability by the share of its class and take the highest: "
            f"{mean:.1%} and {rarest.balanced_recall:.1%}"
        )

    @property
    def warning(self) -> str:
        """A sentence if the model is not significantly better than always predicting one class."""
        name, share = self.commonest
        if self.accuracy.low > share:
            return ""
        return (
            f"the model is not clearly better than always predicting '{name}', which scores "
            f"{share:.1%}: train longer (training.epochs) or on more images"
        )


def evaluate(
    predictions: Predictions,
    subject: ReportSubject,
    calibration: TemperatureFit,
    config: EvaluationConfig | None = None,
) -> EvaluationReport:
    """Compute the report.

    Args:
        predictions: predictions of exactly the images to report on.
        subject: the model and the images.
        calibration: the temperature that the probabilities were calibrated with.
        config: contents of the report besides the metrics.

    Raises:
        DataError: if there are no images.
    """
    classes, config = subject.classes, config or EvaluationConfig()
    check_images(predictions, subject.split)
    groups = predictions.groups
    probabilities, labels = predictions.probabilities_NK, predictions.labels
    areas = Areas.of(probabilities, labels, groups)
    estimates = metrics(probabilities, labels, areas, groups)
    classwise = by_class(probabilities, labels, classes, areas, groups)
    doubtful = galleries.likely_label_errors(predictions)
    answered = (
        TopProbabilities.of(probabilities, labels, groups),
        TopProbabilities.uncalibrated(probabilities, labels, calibration, groups),
    )

    def shown(places: Array) -> tuple[GalleryImage, ...]:
        return galleries.gallery(predictions, classes, places[:GALLERY_SIZE])

    return EvaluationReport(
        **build_shared_fields(
            predictions,
            subject,
            config,
            estimates,
            classwise,
            calibration,
            answered,
        ),
        by_class=_with_balanced_recall(classwise, probabilities, labels, calibration),
        **_confusion(labels, predictions.predicted, len(classes)),
        errors=int((predictions.predicted != labels).sum()),
        most_confident_errors=shown(galleries.confident_errors(predictions)),
        least_certain=shown(galleries.least_certain(predictions)),
        likely_label_errors=shown(doubtful),
        suspected_labels=len(doubtful),
        slices=slices(predictions, config),
    )


def _with_balanced_recall(
    classwise: tuple[ClassMetrics, ...],
    probabilities_NK: Array,
    labels_N: Array,
    calibration: TemperatureFit,
) -> tuple[ClassMetrics, ...]:
    """Add the recall that the classes would have without a bias, if there is one."""
    if not calibration.class_bias.any():
        return classwise
    logs_NK = np.log(np.maximum(probabilities_NK, _LEAST_PROBABILITY))
    right_N = (logs_NK - calibration.class_bias).argmax(axis=1) == labels_N
    right_K = np.bincount(labels_N, weights=right_N, minlength=len(classwise))
    return tuple(
        row.model_copy(update={"balanced_recall": float(right_K[k]) / row.images})
        if row.images
        else row
        for k, row in enumerate(classwise)
    )


def _confusion(labels_N: Array, answers_N: Array, num_classes: int) -> dict[str, Any]:
    """Return the matrix, or with very many classes its non-zero cells."""
    cells = ConfusionCells.of_answers(labels_N, answers_N, num_classes)
    if num_classes <= _MOST_MATRIX_CLASSES:
        matrix = cells.part(np.arange(num_classes))
        return {"confusion": tuple(map(tuple, matrix.tolist()))}
    columns = np.column_stack([cells.rows_M, cells.columns_M, cells.counts_M])
    return {"confusion": (), "confusion_cells": tuple(map(tuple, columns.tolist()))}
