"""What differs between the tasks: one label for each image, or a set of labels.

All that evaluates a model asks its task for it, so a further task is one more value in `TASKS`.

Shapes: N images, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.manifests.manifest import class_images
from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.answers_report import (
    PredictedImages,
    ReferenceFeatures,
    check_answers,
)
from patchline.pipeline.evaluation.comparison import Comparison, compare
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.galleries import ChosenImage, choose_images, choose_labels
from patchline.pipeline.evaluation.html_report import PartsOf, parts_of_classes
from patchline.pipeline.evaluation.label_set_report import (
    LabelSetComparison,
    MultiLabelReport,
    compare_label_sets,
    evaluate_label_sets,
    parts_of_labels,
)
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.intervals import (
    MetricEstimate,
    proportion,
    with_effective_size,
)
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelFit,
    LabelThresholds,
    fit_label_calibration,
    fit_label_thresholds,
)
from patchline.pipeline.evaluation.metrics.mean_average_precision import find_ranked_labels
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    ThresholdedScores,
    label_set_map,
)
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.metrics.temperature import (
    TemperatureFit,
    by_member,
    fit_temperature,
    read_recorded_fit,
)
from patchline.pipeline.evaluation.predictions import (
    Predictions,
    class_numbers,
    image_groups,
    label_matrix,
    stack_rows,
    with_label_sets,
    with_probabilities,
)
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject, evaluate
from patchline.pipeline.evaluation.robustness import (
    AnyRobustness,
    label_set_robustness,
    measure_robustness,
)
from patchline.pipeline.models.model_description import AnswerRules
from patchline.pipeline.training.train_result import EnsembleResult, TrainResult

Array = np.ndarray[Any, Any]
Fit = TypeVar("Fit")
AnyReport = EvaluationReport | MultiLabelReport
AnyComparison = Comparison | LabelSetComparison
"""Of any task, as what is saved is read again."""


@dataclass(frozen=True)
class Task(Generic[Fit]):
    """What a model answers, and all that follows for its evaluation."""

    name: label_sets.Task
    """Name of the task in settings and descriptions."""
    gives: str
    """What the model gives an image, in words."""
    does: str
    """What the model does with images, in words."""
    lacking: tuple[str, str]
    """What a model lacks that does not know the labels of one image, or of several, in words."""
    remedy: Callable[[int], str]
    """Returns what to do if data and model have so many classes in common, but not all."""
    labels: Callable[[Sequence[str], Sequence[str]], Array]
    """Returns labels, as a manifest has them, as numbers among the classes."""
    class_images: Callable[[pd.DataFrame, Sequence[str]], tuple[int, ...]]
    """Returns the number of training images of each class, if training can balance them."""
    fitted: Callable[[pd.DataFrame, tuple[str, ...], Sequence[int]], Fit]
    """Fits what turns logits into answers on held-out images."""
    by_members: Callable[[EnsembleResult], Fit]
    """Returns what the members of an ensemble were fitted to."""
    recorded: Callable[[Any], Fit]
    """Returns what a `PackagedModel` was fitted to."""
    described: Callable[[Fit], dict[str, Any]]
    """Returns the fields of a model's description that hold it."""
    probabilities: Callable[[Fit, Array], Array]
    """Returns calibrated probabilities of logits."""
    table: Callable[[pd.DataFrame, Sequence[str], Array, Fit], pd.DataFrame]
    """Returns rows of a manifest with their probabilities as a table of predictions."""
    predictions: Callable[[pd.DataFrame, tuple[str, ...]], Predictions]
    """Extracts the arrays from such a table."""
    has_sets: bool
    """Whether answers have prediction sets."""
    checked: Callable[
        [AnswerRules, Predictions, PredictedImages, ReferenceFeatures | None], dict[str, Any]
    ]
    """Returns the fields of a report about the rules of a package."""
    report: Callable[[Predictions, ReportSubject, Fit, EvaluationConfig], AnyReport]
    """Computes the report."""
    robustness: Callable[..., AnyRobustness | None]
    """Predicts images as they are and in each corrupted version, as `measured_robustness` does."""
    answers: Callable[[Any, Array, Sequence[str]], Any]
    """Returns the answers of a `PackagedModel`, given probabilities in the order of the classes."""
    compare: Callable[..., AnyComparison]
    """Compares two models, given a `ComparisonSubject`, paths, labels and the answers of both."""
    parts: PartsOf
    """Returns what the report shows beside that which every report does."""
    validated: Callable[[TrainResult, pd.DataFrame, tuple[str, ...]], str]
    """Returns the main metric of the validation images in words, given all predictions."""
    worst: Callable[[Predictions, int], tuple[Array, Array | None]]
    """Returns the rows of the worst errors, at most so many, and which label is wrong, if known."""
    chosen: Callable[[pd.DataFrame, tuple[str, ...]], tuple[ChosenImage, ...]]
    """Returns the images of a table of predictions that are explained on a page of their own."""

    def calibrated(
        self,
        logits: pd.DataFrame,
        classes: tuple[str, ...],
        ensemble: EnsembleResult | None = None,
        class_images: Sequence[int] = (),
    ) -> tuple[pd.DataFrame, Fit]:
        """Fit on all images but the test split; return the predictions of all, and the fit.

        The members of an ensemble are fitted already: no image is left that none of them was
        trained on.

        Args:
            logits: rows of the manifest with `logits`, by models not trained on them.
            classes: names of the classes, in the order of the model's outputs.
            ensemble: the ensemble that computed the logits, if the model is one.
            class_images: number of training images of each class, if the training balanced them.

        Raises:
            RunError: if the model's outputs are not finite numbers.
            DataError: if a label is not one of the model.
        """
        fit = (
            self.by_members(ensemble)
            if ensemble
            else self.fitted(logits[logits["split"] != "test"], classes, class_images)
        )
        probabilities_NK = np.empty((len(logits), len(classes)), np.float32)
        for rows in row_slices(probabilities_NK.shape):
            probabilities_NK[rows] = self.probabilities(
                fit, stack_rows(logits["logits"].iloc[rows])
            )
        return self.table(logits, classes, probabilities_NK, fit), fit


def _fit_temperature(
    held_out: pd.DataFrame, classes: tuple[str, ...], class_images: Sequence[int]
) -> TemperatureFit:
    """Fit the temperature.

    Args:
        held_out: rows of the manifest with `logits`, by models not trained on them.
        classes: the model's classes, in the order of its outputs.
        class_images: number of training images of each class, if the training balanced them.

    Raises:
        RunError: if the model's outputs are not finite numbers.
    """
    labels_N, chosen = class_numbers(list(held_out["label"]), classes), list(held_out["logits"])
    logits_NK = np.stack(chosen) if chosen else np.empty((0, len(classes)), np.float32)
    groups = image_groups(held_out)
    return fit_temperature(logits_NK, labels_N, groups=groups, class_images=class_images)


def _accuracy_interval(accuracy: float, images: int, validated: pd.DataFrame) -> MetricEstimate:
    """Return a validation accuracy on some images with its interval.

    Args:
        accuracy: validation accuracy that the training run has measured.
        images: number of images that the accuracy is computed on.
        validated: predictions of the whole split; they tell how much the images of a group agree.
    """
    groups = image_groups(validated)
    if groups is None:
        return proportion(round(accuracy * images), images)
    right_N = (validated["predicted"] == validated["label"]).to_numpy(np.float64)
    effective_n = images / groups.inflation(right_N)
    return with_effective_size(accuracy, n=images, effective_n=effective_n)


def _describe_validation_accuracy(
    trained: TrainResult, table: pd.DataFrame, _classes: tuple[str, ...]
) -> str:
    """Return the validation accuracy with its interval; if it is not float32, that in float32 too.

    Args:
        trained: the result of the training run, with its validation accuracy.
        table: all predictions, in float32.
    """
    accuracy = trained.best_validation_accuracy or 0.0
    words = f"validation accuracy {accuracy:.1%}"
    of_best = [each for each in trained.history if each.step == trained.best_step]
    images = of_best[-1].validation_images if of_best else 0
    if images:
        interval = _accuracy_interval(accuracy, images, table[table["split"] == "validation"])
        words += f" of {images:,} images (95% interval {interval.low:.1%} to {interval.high:.1%})"
    if trained.precision != "float32":
        words += f", {'with features ' if trained.probe else ''}in {trained.precision}"
        # After a refit, the predictions are those of other weights.
        validated = table[table["split"] == "validation"]
        if trained.refit is None and len(validated):
            exact = float((validated["predicted"] == validated["label"]).mean())
            words += f"; {exact:.1%} of {len(validated):,} in float32, as registered"
    return words


def _fit_labels(
    held_out: pd.DataFrame, classes: tuple[str, ...], _class_images: Sequence[int]
) -> LabelFit:
    """Fit calibration and thresholds.

    Args:
        held_out: rows of the manifest with `logits`, by models not trained on them.
        classes: the model's labels, in the order of its outputs.

    Raises:
        RunError: if the model's outputs are not finite numbers.
        DataError: if a label is not one of the model.
    """
    if held_out.empty:
        count = len(classes)
        return LabelFit(LabelCalibration.none(count), LabelThresholds.neutral(count))
    labels_NK = label_matrix(list(held_out["label"]), classes)
    logits_NK = stack_rows(held_out["logits"])
    calibration = fit_label_calibration(logits_NK, labels_NK)
    probabilities_NK = calibration.probabilities(logits_NK)
    return LabelFit(calibration, fit_label_thresholds(probabilities_NK, labels_NK))


def _labels_by_members(ensemble: EnsembleResult) -> LabelFit:
    """Return what the members of an ensemble were fitted to."""
    calibration = LabelCalibration.by_member(ensemble.label_calibrations)
    neutral = LabelThresholds.neutral(len(calibration.scales))
    return LabelFit(calibration, ensemble.thresholds or neutral)


def _read_recorded_labels(package: Any) -> LabelFit:
    """Return what a `PackagedModel` holds."""
    calibration = LabelCalibration.none(len(package.classes))
    if package.label_calibration:
        calibration = LabelCalibration.model_validate(package.label_calibration)
    return LabelFit(calibration, LabelThresholds.model_validate(package.thresholds))


def _label_answers(
    package: Any, probabilities_NK: Array, classes: Sequence[str]
) -> ThresholdedScores:
    """Return a package's probabilities, and the labels at or above its own thresholds."""
    own = dict(zip(package.classes, np.array(package.thresholds_K).tolist(), strict=True))
    thresholds_K = np.array([own[label] for label in classes])
    exact_NK = probabilities_NK.astype(np.float64)
    return ThresholdedScores(exact_NK, (exact_NK >= thresholds_K).astype(np.uint8))


def _describe_validation_map(
    _trained: TrainResult, table: pd.DataFrame, classes: tuple[str, ...]
) -> str:
    """Return the mAP on the validation images in words, given all predictions."""
    own = Predictions.of_label_sets(table[table["split"] == "validation"], classes)
    if not find_ranked_labels(own.labels).any():
        return "validation mAP unknown: no label is on some validation images and not on others"
    found = label_set_map(own.probabilities_NK, own.labels, groups=own.groups)
    return (
        f"validation mAP {found.value:.1%} of {found.n:,} images in float32 (95% interval "
        f"{found.low:.1%} to {found.high:.1%})"
    )


SINGLE = Task[TemperatureFit](
    name=SINGLE_LABEL,
    gives="one label",
    does="classifies the images",
    lacking=("its class", "their class"),
    remedy=lambda common: (
        f"Add --common-classes to evaluate on the {common} in common, or rename the folders."
        if common
        else "Rename the folders to the model's class names."
    ),
    labels=class_numbers,
    class_images=class_images,
    fitted=_fit_temperature,
    by_members=lambda ensemble: by_member(ensemble.calibrations),
    recorded=lambda package: read_recorded_fit(package.calibration, package.temperature),
    described=lambda fit: {"temperature": fit.temperature, "calibration": fit},
    probabilities=lambda fit, logits_NK: softmax(fit.logits(logits_NK)),
    table=lambda rows, classes, chances_NK, _: with_probabilities(rows, classes, chances_NK),
    predictions=lambda table, _: Predictions.of(table),
    has_sets=True,
    checked=lambda rules, tested, images, reference: {
        "answers": check_answers(rules, tested, images.of(tested, reference, rules.far_split))
    },
    report=evaluate,
    parts=parts_of_classes,
    robustness=measure_robustness,
    answers=lambda _package, probabilities_NK, _classes: probabilities_NK,
    compare=compare,
    validated=_describe_validation_accuracy,
    worst=lambda predictions, most: (galleries.confident_errors(predictions)[:most], None),
    chosen=choose_images,
)
"""One label for each image."""
SEVERAL = Task[LabelFit](
    name=MULTI_LABEL,
    gives="sets of labels",
    does="finds the labels of the images",
    lacking=("all labels of it", "all labels of them"),
    remedy=lambda _: (
        "Add --common-classes to leave out the images with labels that the model does not have, or "
        "rename the labels to the model's."
    ),
    labels=label_matrix,
    class_images=lambda *_: (),
    fitted=_fit_labels,
    by_members=_labels_by_members,
    recorded=_read_recorded_labels,
    described=LabelFit._asdict,
    probabilities=lambda fit, logits_NK: fit.label_calibration.probabilities(logits_NK),
    table=lambda rows, classes, chances_NK, fit: with_label_sets(
        rows, classes, chances_NK, fit.thresholds
    ),
    predictions=Predictions.of_label_sets,
    has_sets=False,
    checked=lambda rules, *_: {"warning_rules": rules},
    report=evaluate_label_sets,
    parts=parts_of_labels,
    robustness=label_set_robustness,
    answers=_label_answers,
    compare=compare_label_sets,
    validated=_describe_validation_map,
    worst=lambda predictions, most: galleries.false_positives(predictions).of_one_image_each(most),
    chosen=choose_labels,
)
"""A set of labels for each image."""
TASKS: dict[str, Task[Any]] = {SINGLE_LABEL: SINGLE, MULTI_LABEL: SEVERAL}
"""By their names."""


def task_of(package: Any) -> Task[Any]:
    """Return the task of a `PackagedModel`."""
    return SEVERAL if package.is_multi_label else SINGLE
