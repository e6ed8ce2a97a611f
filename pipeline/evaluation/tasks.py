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
from patchline.pipeline.evaluation import galleries, single_label
from patchline.pipeline.evaluation.answer_rules_fit import ReferenceFeatures
from patchline.pipeline.evaluation.answers_report import PredictedImages
from patchline.pipeline.evaluation.chosen_images import ChosenImage, chosen_images, chosen_labels
from patchline.pipeline.evaluation.comparison import Comparison, compare
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.html_report import (
    ReportPage,
    ReportParts,
    WhereItLooked,
    parts_of_classes,
)
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import (
    PairedMetric,
    paired_map,
)
from patchline.pipeline.evaluation.metrics.paired_test import PairedDifference
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit, by_member, recorded
from patchline.pipeline.evaluation.multi_label import label_fit
from patchline.pipeline.evaluation.multi_label.label_fit import LabelFit
from patchline.pipeline.evaluation.multi_label.label_set_page import (
    LabelSetComparison,
    compare_label_sets,
    parts_of_labels,
)
from patchline.pipeline.evaluation.multi_label.label_set_report import (
    MultiLabelReport,
    evaluate_label_sets,
)
from patchline.pipeline.evaluation.predictions import (
    Predictions,
    class_numbers,
    label_matrix,
    stacked,
    with_label_sets,
    with_probabilities,
)
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject, evaluate
from patchline.pipeline.evaluation.robustness import (
    AnyRobustness,
    label_set_robustness,
    measured_robustness,
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
    """In settings and descriptions."""
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
        [AnswerRules, Predictions, PredictedImages, ReferenceFeatures | None, EvaluationConfig],
        dict[str, Any],
    ]
    """Returns the fields of a report about the rules of a package."""
    report: Callable[[Predictions, ReportSubject, Fit, EvaluationConfig], AnyReport]
    """Computes the report."""
    robustness: Callable[..., AnyRobustness | None]
    """Predicts images as they are and in each corrupted version, as `measured_robustness` does."""
    paired: Callable[[Array, Array, Array, ImageGroups | None], PairedDifference | PairedMetric]
    """Compares the main metric of two classifiers, given the labels of images and two scores."""
    answers: Callable[[Any, Array, Sequence[str]], Any]
    """Returns the answers of a `PackagedModel`, given probabilities in the order of the classes."""
    compare: Callable[..., AnyComparison]
    """Compares two models, given a `ComparisonSubject`, paths, labels and the answers of both."""
    parts: Callable[[Any, ReportPage, WhereItLooked], ReportParts]
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
            classes: in the order of the model's outputs.
            ensemble: that the logits are of, if the model is one.
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
            probabilities_NK[rows] = self.probabilities(fit, stacked(logits["logits"].iloc[rows]))
        return self.table(logits, classes, probabilities_NK, fit), fit


SINGLE = Task[TemperatureFit](
    name=SINGLE_LABEL,
    gives="one label",
    does="classifies the images",
    lacking=("its class", "their class"),
    remedy=single_label.remedy,
    labels=class_numbers,
    class_images=class_images,
    fitted=single_label.fitted,
    by_members=lambda ensemble: by_member(ensemble.calibrations),
    recorded=lambda package: recorded(package.calibration, package.temperature),
    described=lambda fit: {"temperature": fit.temperature, "calibration": fit},
    probabilities=lambda fit, logits_NK: softmax(fit.logits(logits_NK)),
    table=lambda rows, classes, chances_NK, _: with_probabilities(rows, classes, chances_NK),
    predictions=lambda table, _: Predictions.of(table),
    has_sets=True,
    checked=single_label.checked_sets,
    report=evaluate,
    parts=parts_of_classes,
    robustness=measured_robustness,
    paired=single_label.paired,
    answers=lambda _package, probabilities_NK, _classes: probabilities_NK,
    compare=compare,
    validated=single_label.validated,
    worst=lambda predictions, most: (galleries.confident_errors(predictions)[:most], None),
    chosen=chosen_images,
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
    fitted=label_fit.fitted,
    by_members=label_fit.by_members,
    recorded=label_fit.recorded,
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
    paired=lambda labels, a, b, groups: paired_map(labels, a, b, groups=groups),
    answers=label_fit.answers,
    compare=compare_label_sets,
    validated=label_fit.validated,
    worst=lambda predictions, most: galleries.false_positives(predictions).of_one_image_each(most),
    chosen=chosen_labels,
)
"""A set of labels for each image."""
TASKS: dict[str, Task[Any]] = {SINGLE_LABEL: SINGLE, MULTI_LABEL: SEVERAL}
"""By their names."""


def task_of(package: Any) -> Task[Any]:
    """Return the task of a `PackagedModel`."""
    return SEVERAL if package.is_multi_label else SINGLE
