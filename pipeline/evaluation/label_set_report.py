"""The evaluation report of a multi-label model on one split.

Everything is computed from calibrated probabilities, so that a run and `patchline evaluate` agree.

Shapes: N images, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, by_task
from patchline.pipeline.evaluation import galleries
from patchline.pipeline.evaluation.comparison import (
    DIFFERENCE,
    ChangedMetric,
    ComparedModels,
    ComparisonSubject,
    PairedValues,
)
from patchline.pipeline.evaluation.config import GALLERY_SIZE, EvaluationConfig
from patchline.pipeline.evaluation.galleries import LabelSetImage
from patchline.pipeline.evaluation.headline import Headline
from patchline.pipeline.evaluation.html_report import (
    Gallery,
    ReportPage,
    ReportParts,
    WhereItLooked,
)
from patchline.pipeline.evaluation.metrics import curve_areas
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate, share
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelFit,
    LabelThresholds,
    listed,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    LabelMetrics,
    PairedMetric,
    ThresholdedScores,
    by_label,
    compare_metrics,
    exact_matches,
    multi_label_metrics,
    pairs,
    samples_f1,
)
from patchline.pipeline.evaluation.metrics.names import MAIN, MULTI_LABEL_METRICS
from patchline.pipeline.evaluation.plots import (
    FALSE_NEGATIVES,
    FALSE_POSITIVES,
    MISSING_LABELS,
    OF_LABEL_SETS,
)
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import (
    ImageSubset,
    ModelReport,
    ReportSubject,
    build_shared_fields,
    check_images,
    groups_within,
    measure_parts,
)
from patchline.pipeline.evaluation.robustness import LabelSetRobustness
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import AnswerRules
from patchline.pipeline.templates import render_markdown

Array = np.ndarray[Any, Any]
_MOST_PAIRS = 20


class ConfusedLabels(FrozenModel):
    """A label that is missed on images for which another one is wrongly predicted."""

    missed: str
    """A label of the images that is not predicted."""
    predicted: str
    """A label that is predicted instead, which they do not have."""
    images: int
    """Number of images with both errors."""
    of: int
    """Number of images with the missed label but without the other one."""


class LabelPair(FrozenModel):
    """Two labels that images have together, or are predicted to have."""

    first: str
    second: str
    images: int
    """Number of images that have both."""
    predicted: int
    """Number of images for which both are predicted."""


def find_confused_labels(
    labels_NK: Array, predicted_NK: Array, classes: Sequence[str]
) -> tuple[ConfusedLabels, ...]:
    """Return the pairs of a missed label and one predicted in its place, most images first."""
    has, said = labels_NK.astype(np.float32), predicted_NK.astype(np.float32)
    images_KK = (has * (1 - said)).T @ ((1 - has) * said)
    without_KK = has.T @ (1 - has)
    order = np.argsort(-images_KK, axis=None, kind="stable")[:_MOST_PAIRS]
    rows, columns = np.unravel_index(order, images_KK.shape)
    return tuple(
        ConfusedLabels(
            missed=classes[row],
            predicted=classes[column],
            images=int(images_KK[row, column]),
            of=int(without_KK[row, column]),
        )
        for row, column in zip(rows, columns, strict=True)
        if images_KK[row, column]
    )


def label_pairs(
    labels_NK: Array, predicted_NK: Array, classes: Sequence[str]
) -> tuple[LabelPair, ...]:
    """Return the pairs of labels whose number of images differs most from the predicted number."""
    has, said = labels_NK.astype(np.float32), predicted_NK.astype(np.float32)
    images_KK, predicted_KK = has.T @ has, said.T @ said
    rows, columns = np.triu_indices(len(classes), 1)
    gaps = np.abs(images_KK - predicted_KK)[rows, columns]
    order = np.argsort(-gaps, kind="stable")[:_MOST_PAIRS]
    return tuple(
        LabelPair(
            first=classes[row],
            second=classes[column],
            images=int(images_KK[row, column]),
            predicted=int(predicted_KK[row, column]),
        )
        for row, column in zip(rows[order], columns[order], strict=True)
        if images_KK[row, column] or predicted_KK[row, column]
    )


class LabelSetSlice(ImageSubset):
    """A subset of the images, and the F1 of the labels of its images.

    Not mAP, which depends on how many images of the subset have each label.
    """

    samples_f1: MetricEstimate
    """Mean F1 of the labels of each image."""
    exact_match: MetricEstimate
    """Share of the images whose labels are all right."""

    @property
    def metric(self) -> MetricEstimate:
        """What is compared with that of all images."""
        return self.samples_f1


class MultiLabelReport(ModelReport):
    """The result of an evaluation of a model whose images have sets of labels."""

    task: Literal["multi_label"] = "multi_label"
    by_label: tuple[LabelMetrics, ...]
    """Metrics of each label, in the order of `classes`."""
    unlabelled: int
    """Number of images without any label."""
    labels_per_image: float
    """Mean number of labels of an image."""
    predicted_per_image: float
    """Mean number of predicted labels of an image."""
    confused: tuple[ConfusedLabels, ...]
    """Labels that are missed where another one is wrongly predicted, most images first."""
    together: tuple[LabelPair, ...]
    """Labels that appear together, those predicted too often or too seldom first."""
    false_positives: int
    """Number of pairs of image and label that are predicted and not in the data."""
    false_negatives: int
    """Number of pairs of image and label that are in the data and not predicted."""
    confident_false_positives: tuple[LabelSetImage, ...]
    confident_false_negatives: tuple[LabelSetImage, ...]
    missing_labels: tuple[LabelSetImage, ...]
    """Images that seem to lack a label in the data, most suspicious first."""
    suspected_labels: int
    """Total number of labels that seem to be missing."""
    calibration: LabelCalibration
    """Scale and shift of each label, fitted on the validation split of the training data."""
    thresholds: LabelThresholds
    """Probability from which on each label is predicted."""
    slices: tuple[LabelSetSlice, ...] = ()
    answers: None = None
    """Prediction sets are for one label."""
    warning_rules: AnswerRules | None = None
    """Limits beyond which an image gets a warning; None if nothing was fitted."""
    robustness: LabelSetRobustness | None = None
    """MAP on corrupted versions of a sample of these images; None if it was not asked for, or if it
    is unknown."""

    @property
    def corrupted_metrics(self) -> dict[str, MetricEstimate]:
        """MAP on corrupted images by name, without the split."""
        return self.robustness.metrics if self.robustness else {}

    @property
    def described(self) -> dict[str, Any]:
        """The calibration, thresholds, and rules for warnings."""
        return {
            "label_calibration": self.calibration,
            "thresholds": self.thresholds,
            "answers": self.warning_rules,
        }

    @property
    def headline(self) -> Headline:
        """MAP, by which models are compared."""
        return Headline(MAIN, self.metrics.get(f"{self.split}/{MAIN}"))

    @property
    def unknown_labels(self) -> tuple[str, ...]:
        """The labels that no image has, so that nothing is known about them."""
        return tuple(row.name for row in self.by_label if not row.images)

    @property
    def unranked_labels(self) -> tuple[str, ...]:
        """The labels that all images have, so that nothing tells how they are ranked."""
        return tuple(row.name for row in self.by_label if row.images == self.images)

    @property
    def never_predicted(self) -> tuple[str, ...]:
        """The labels that images have, and that none of them is given."""
        return tuple(row.name for row in self.by_label if row.images and not row.predicted)

    @property
    def chance(self) -> float | None:
        """The mAP of random ranking: the mean share of the images that have a label.

        None if no label is on some images and not on others.
        """
        shares = [row.images / self.images for row in self.by_label]
        ranked = [share for share in shares if 0 < share < 1]
        return float(np.mean(ranked)) if ranked else None

    @property
    def warning(self) -> str:
        """A sentence if the model does not rank significantly better than chance."""
        main, chance = self.headline.estimate, self.chance
        if main is None or chance is None or main.low > chance:
            return ""
        return (
            f"the model is not clearly better than random ranking, whose mAP is {chance:.1%}: "
            "train longer (training.epochs) or on more images"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not known or not calibrated, and what that means."""
        text = render_markdown("label_set_notes.txt.j2", __package__, report=self, listed=listed)
        return tuple(text.splitlines())


def evaluate_label_sets(
    predictions: Predictions,
    subject: ReportSubject,
    fit: LabelFit,
    config: EvaluationConfig | None = None,
) -> MultiLabelReport:
    """Compute the report.

    Args:
        predictions: predictions of exactly the images to report on.
        subject: the model and the images.
        fit: the calibration of the probabilities, and the thresholds by which labels were
            predicted.
        config: contents of the report besides the metrics.

    Raises:
        DataError: if there are no images.
    """
    classes, config = subject.classes, config or EvaluationConfig()
    calibration, thresholds = fit
    check_images(predictions, subject.split)
    groups = predictions.groups
    probabilities, labels = predictions.probabilities_NK, predictions.labels
    predicted, images = predictions.predicted, len(labels)
    wrong, missed = (
        galleries.false_positives(predictions),
        galleries.false_negatives(predictions),
    )
    lacking = galleries.missing_labels(predictions)
    classwise = by_label(probabilities, labels, predicted, classes, thresholds.values, groups)
    before = calibration.uncalibrated_probabilities(probabilities)

    def shown(pairs_M: galleries.Pairs) -> tuple[LabelSetImage, ...]:
        chosen = pairs_M.of_one_image_each(GALLERY_SIZE)
        return galleries.describe_images(predictions, classes, thresholds.values, chosen)

    return MultiLabelReport(
        **build_shared_fields(
            predictions,
            subject,
            config,
            multi_label_metrics(probabilities, labels, predicted, groups=groups),
            classwise,
            calibration,
            (pairs(probabilities, labels, groups), pairs(before, labels, groups)),
        ),
        by_label=classwise,
        unlabelled=int((labels.sum(axis=1) == 0).sum()),
        labels_per_image=float(labels.sum() / images),
        predicted_per_image=float(predicted.sum() / images),
        confused=find_confused_labels(labels, predicted, classes),
        together=label_pairs(labels, predicted, classes),
        false_positives=len(wrong.images_M),
        false_negatives=len(missed.images_M),
        confident_false_positives=shown(wrong),
        confident_false_negatives=shown(missed),
        missing_labels=shown(lacking),
        suspected_labels=len(lacking.images_M),
        thresholds=thresholds,
        slices=_slices(predictions, config),
    )


def _slices(predictions: Predictions, config: EvaluationConfig) -> tuple[LabelSetSlice, ...]:
    """Return the slices by each chosen column."""
    labels_NK, predicted_NK = predictions.labels, predictions.predicted
    groups = predictions.groups
    right_N = exact_matches(labels_NK, predicted_NK)

    def f1(chosen_N: Array) -> MetricEstimate:
        own = groups_within(chosen_N, groups)
        return samples_f1(labels_NK[chosen_N], predicted_NK[chosen_N], own)

    overall = samples_f1(labels_NK, predicted_NK).value
    return tuple(
        LabelSetSlice(
            **part,
            samples_f1=estimate,
            exact_match=share(right_N[chosen_N], groups_within(chosen_N, groups)),
        )
        for part, estimate, chosen_N in measure_parts(predictions.table, config, f1, overall)
    )


_MAP_WORDS = (
    " The second picture shows which parts support this label, by gradient times pixel: the "
    "brighter, the more."
)


def parts_of_labels(
    report: MultiLabelReport, _page: ReportPage, looked: WhereItLooked
) -> ReportParts:
    """Return what the report of a model that gives sets of labels shows."""
    return ReportParts(
        "label_set_report.html.j2",
        MULTI_LABEL_METRICS,
        ("micro_mAP", "macro_f1", "samples_f1", "exact_match", "ranking_loss", "ece"),
        sorted(report.by_label, key=_worst_first),
        20,
        report.notes,
        _galleries(report, looked),
        OF_LABEL_SETS,
        ("loss", "map"),
    )


def _worst_first(row: LabelMetrics) -> tuple[bool, float]:
    """Sort by average precision; labels of all images, or of none, last."""
    return row.average_precision is None, (
        row.average_precision.value if row.average_precision else 0.0
    )


def _galleries(report: MultiLabelReport, looked: WhereItLooked) -> tuple[Gallery, ...]:
    map_words = _MAP_WORDS if looked.maps else ""
    return (
        Gallery(
            "false-positives",
            "False positives",
            f"{report.false_positives:,} predicted labels are not in the data: the most probable "
            f"first, one for each image.{map_words}",
            report.confident_false_positives,
            FALSE_POSITIVES,
            is_mapped=True,
        ),
        Gallery(
            "false-negatives",
            "False negatives",
            f"{report.false_negatives:,} labels are in the data and not predicted: the least "
            "probable first, one for each image.",
            report.confident_false_negatives,
            FALSE_NEGATIVES,
        ),
        Gallery(
            "missing-labels",
            "Labels that may be missing",
            f"Confident learning suspects that {report.suspected_labels:,} labels are missing in "
            "the data, most suspicious first. Check them against the image: a model that confuses "
            "two labels also suspects correct ones.",
            report.missing_labels,
            MISSING_LABELS,
        ),
    )


class LabelSetComparison(ComparedModels):
    """The result of a comparison; differences are the challenger minus the champion."""

    METRIC = MAIN
    ON = "on"
    LOSES = "average precision"
    WORDS = by_task(MULTI_LABEL)
    COLUMNS = (DIFFERENCE,)
    TEMPLATE = "label_set_comparison.html.j2"

    task: Literal["multi_label"] = "multi_label"
    paired: dict[str, PairedMetric]
    """Paired bootstrap of each metric, mAP first; a is the champion, b the challenger."""
    by_label: tuple[ChangedMetric, ...]
    """The average precision of every label, in the order of the model's outputs."""

    @property
    def changes(self) -> tuple[ChangedMetric, ...]:
        """Of every label."""
        return self.by_label

    @property
    def pairs(self) -> dict[str, PairedValues]:
        """Of all paired metrics."""
        return {
            MULTI_LABEL_METRICS[key].title: PairedValues(
                pair.a, pair.b, pair.difference, pair.p_value
            )
            for key, pair in self.paired.items()
        }


def compare_label_sets(
    models: ComparisonSubject,
    _paths: Sequence[str],
    labels_NK: Array,
    before: ThresholdedScores,
    now: ThresholdedScores,
) -> LabelSetComparison:
    """Compare two models on the same N images.

    Args:
        models: the two models, and the images.
        labels_NK: 1 where an image has a label, else 0.
        before: the answers of the champion.
        now: the answers of the challenger.
    """
    groups = ImageGroups.of(models.groups_N)
    return LabelSetComparison(
        **models.fields(len(labels_NK), groups),
        paired=compare_metrics(labels_NK, before, now, groups=groups),
        by_label=tuple(
            ChangedMetric(
                name=name,
                images=int(labels_NK[:, k].sum()),
                groups=_groups_with(labels_NK[:, k], groups),
                champion=curve_areas.average_precision(
                    before.probabilities_NK[:, k], labels_NK[:, k] > 0, groups
                ),
                challenger=curve_areas.average_precision(
                    now.probabilities_NK[:, k], labels_NK[:, k] > 0, groups
                ),
            )
            for k, name in enumerate(models.classes)
        ),
    )


def _groups_with(label_N: Array, groups: ImageGroups | None) -> int | None:
    """Return the number of groups that the images with a label form; None if none has several."""
    own = groups.among(np.flatnonzero(label_N)) if groups else None
    return own.count if own else None
