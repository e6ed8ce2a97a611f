"""The evaluation report of a multi-label model on one split.

Everything is computed from calibrated probabilities, so that a run and `patchline evaluate` agree.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from patchline.pipeline.data.manifests.manifest import contents_fingerprint
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.headline import Headline
from patchline.pipeline.evaluation.multi_label import label_set_galleries as galleries
from patchline.pipeline.evaluation.multi_label.co_occurrence import (
    ConfusedLabels,
    LabelPair,
    confused_labels,
    label_pairs,
)
from patchline.pipeline.evaluation.multi_label.label_set_galleries import LabelSetImage
from patchline.pipeline.evaluation.multi_label.label_set_predictions import LabelSetPredictions
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.calibration import (
    ReliabilityBin,
    calibration_error_of,
    reliability_of,
)
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.metrics.label_calibration import LabelCalibration, listed
from patchline.pipeline.metrics.label_thresholds import LabelThresholds
from patchline.pipeline.metrics.multi_label.label_set_metrics import (
    LabelMetrics,
    by_label,
    multi_label_metrics,
    pairs,
)
from patchline.pipeline.metrics.multi_label.names import MAIN
from patchline.pipeline.models.answer_rules import AnswerRules
from patchline.pipeline.provenance.provenance import UNKNOWN, ProvenanceSummary

Array = np.ndarray[Any, Any]


class MultiLabelReport(FrozenModel):
    """The result of an evaluation."""

    task: Literal["multi_label"] = "multi_label"
    name: str
    split: str
    data_fingerprint: str
    images_fingerprint: str = ""
    """Version of the images of this report: equal for two models that saw the same ones."""
    images: int
    classes: tuple[str, ...]
    """The labels, in the order of the model's outputs."""
    metrics: dict[str, MetricEstimate]
    """Metrics by name, prefixed with the split: `test/mAP`."""
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
    """From which probability on each label is predicted."""
    computed_by: str = ""
    """What computed the probabilities, in words."""
    reliability: tuple[ReliabilityBin, ...]
    """Reliability of the calibrated probabilities of all pairs of image and label."""
    uncalibrated_reliability: tuple[ReliabilityBin, ...]
    """Reliability without calibration."""
    uncalibrated_ece: MetricEstimate
    """Expected calibration error without calibration."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the model has seen are recorded, so that these images are not among
    them."""
    answers: None = None
    """Prediction sets are for one label."""
    warning_rules: AnswerRules | None = None
    """Limits beyond which an image gets a warning; None if nothing was fitted."""
    robustness: None = None
    """Corruptions are for one label."""
    averaging: None = None
    """Test-time averaging is chosen for one label."""
    unsupported: tuple[str, ...] = ()
    """Parts of the report that were asked for and that it does not have, each with the reason."""
    config: EvaluationConfig

    @property
    def with_robustness(self) -> MultiLabelReport:
        """The report itself, which has no metrics on corrupted images."""
        return self

    @property
    def headline(self) -> Headline:
        """MAP, by which models are compared."""
        return Headline(MAIN, self.metrics[f"{self.split}/{MAIN}"])

    @property
    def unknown_labels(self) -> tuple[str, ...]:
        """The labels that no image has, so that nothing is known about them."""
        return tuple(row.name for row in self.by_label if not row.images)

    @property
    def chance(self) -> float:
        """The mAP of random ranking: the mean share of the images that have a label."""
        return float(np.mean([row.images / self.images for row in self.by_label if row.images]))

    @property
    def warning(self) -> str:
        """A sentence if the model does not rank significantly better than chance."""
        if self.headline.estimate.low > self.chance:
            return ""
        return (
            f"the model is not clearly better than random ranking, whose mAP is {self.chance:.1%}: "
            "train longer (training.epochs) or on more images"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not known or not calibrated, and what that means."""
        notes = list(self.unsupported)
        if self.unknown_labels:
            notes.append(
                f"no {self.split} image has the label {listed(self.unknown_labels)}: unknown, and "
                "excluded from means over the labels"
            )
        if not self.calibration.is_determined:
            notes.append(f"calibration: {self.calibration.sentence(self.classes)}")
        if not all(self.thresholds.fitted):
            notes.append(f"thresholds: {self.thresholds.sentence(self.classes)}")
        return tuple(notes)


def evaluate_label_sets(
    predictions: LabelSetPredictions,
    *,
    name: str,
    classes: tuple[str, ...],
    split: str,
    data_fingerprint: str,
    calibration: LabelCalibration,
    thresholds: LabelThresholds,
    computed_by: str = "",
    config: EvaluationConfig | None = None,
) -> MultiLabelReport:
    """Compute the report.

    Args:
        predictions: predictions of exactly the images to report on.
        name: of the model.
        classes: the labels, in the order of the model's outputs; some may have no image.
        split: name of the split; the prefix of the metric names.
        data_fingerprint: version of the data.
        calibration: with which the probabilities were calibrated.
        thresholds: with which labels were predicted.
        computed_by: what computed the probabilities, in words.
        config: contents of the report besides the metrics.

    Raises:
        DataError: if there are no images, or none has a label of the model.
    """
    probabilities, labels = predictions.probabilities_NK, predictions.labels_NK
    predicted, images = predictions.predicted_NK, len(predictions.labels_NK)
    if images == 0:
        raise DataError(f"There is no {split} image to report on. Choose a split that has images.")
    config = config or EvaluationConfig()
    wrong, missed = galleries.false_positives(predictions), galleries.false_negatives(predictions)
    lacking = galleries.missing_labels(predictions)
    before = pairs(calibration.uncalibrated_probabilities(probabilities), labels)

    def shown(pairs_M: galleries.Pairs) -> tuple[LabelSetImage, ...]:
        chosen = pairs_M.of_one_image_each(config.gallery_size)
        return galleries.described(predictions, classes, thresholds.values, chosen)

    return MultiLabelReport(
        name=name,
        split=split,
        data_fingerprint=data_fingerprint,
        images_fingerprint=contents_fingerprint(predictions.table),
        images=images,
        classes=classes,
        metrics={
            f"{split}/{key}": value
            for key, value in multi_label_metrics(probabilities, labels, predicted).items()
        },
        by_label=by_label(probabilities, labels, predicted, classes, thresholds.values),
        unlabelled=int((labels.sum(axis=1) == 0).sum()),
        labels_per_image=float(labels.sum() / images),
        predicted_per_image=float(predicted.sum() / images),
        confused=confused_labels(labels, predicted, classes),
        together=label_pairs(labels, predicted, classes),
        false_positives=len(wrong.images_M),
        false_negatives=len(missed.images_M),
        confident_false_positives=shown(wrong),
        confident_false_negatives=shown(missed),
        missing_labels=shown(lacking),
        suspected_labels=len(lacking.images_M),
        calibration=calibration,
        thresholds=thresholds,
        computed_by=computed_by,
        reliability=reliability_of(pairs(probabilities, labels)),
        uncalibrated_reliability=reliability_of(before),
        uncalibrated_ece=calibration_error_of(before),
        config=config,
    )
