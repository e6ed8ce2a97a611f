"""From a run's logits to the report: calibrate, choose thresholds, predict, measure."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    fit_label_calibration,
)
from patchline.pipeline.evaluation.metrics.label_thresholds import (
    LabelThresholds,
    fit_label_thresholds,
)
from patchline.pipeline.evaluation.metrics.mean_average_precision import ranked_labels
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import label_set_map
from patchline.pipeline.evaluation.multi_label.label_set_report import (
    MultiLabelReport,
    evaluate_label_sets,
)
from patchline.pipeline.evaluation.predictions import (
    LabelSetPredictions,
    checked_labels,
    image_groups,
    stacked,
    with_label_sets,
)
from patchline.pipeline.evaluation.report import ReportSubject
from patchline.pipeline.training.train_result import EnsembleResult


@dataclass(frozen=True)
class JudgedLabelSets:
    """The report on the test images, and the predictions of these and the validation images."""

    report: MultiLabelReport
    table: pd.DataFrame
    validation: MetricEstimate | None
    """MAP on the validation images; None if no label is on some of them and not on others."""

    @property
    def validated(self) -> str:
        """MAP on the validation images, in words."""
        if self.validation is None:
            return "validation mAP unknown: no label is on some validation images and not on others"
        found = self.validation
        return (
            f"validation mAP {found.value:.1%} of {found.n:,} images in float32 (95% interval "
            f"{found.low:.1%} to {found.high:.1%})"
        )


def judge(
    logits: pd.DataFrame,
    config: RunConfig,
    data: IngestedData,
    computed_by: str,
    ensemble: EnsembleResult | None = None,
) -> JudgedLabelSets:
    """Fit calibration and thresholds on all images but the test split, and report on that.

    The members of an ensemble are calibrated already, and its thresholds known: no image is left
    that none of them was trained on.

    Args:
        logits: rows of the manifest with `logits`, by models not trained on them.
        config: the resolved settings.
        data: the images and their labels.
        computed_by: what computed the logits, in words.
        ensemble: that the logits are of, if the model is one.

    Raises:
        RunError: if the model's outputs are not finite numbers.
        DataError: if there is no test image.
    """
    table, calibration, thresholds = calibrated_label_sets(logits, data.classes, ensemble)
    report = evaluate_label_sets(
        LabelSetPredictions.of(table[table["split"] == "test"], data.classes),
        ReportSubject(
            name=str(config.name),
            classes=data.classes,
            split="test",
            data_fingerprint=data.fingerprint,
            computed_by=computed_by,
        ),
        calibration=calibration,
        thresholds=thresholds,
        config=config.evaluation,
    ).model_copy(update={"provenance": data.seen_before.provenance})
    validated = LabelSetPredictions.of(table[table["split"] == "validation"], data.classes)
    validation = (
        label_set_map(
            validated.probabilities_NK,
            validated.labels_NK,
            groups=image_groups(validated.table),
        )
        if ranked_labels(validated.labels_NK).any()
        else None
    )
    return JudgedLabelSets(report, table, validation)


def _of_ensemble(
    logits: pd.DataFrame, classes: tuple[str, ...], ensemble: EnsembleResult
) -> tuple[pd.DataFrame, LabelCalibration, LabelThresholds]:
    """Return the predictions of an ensemble, with what its members were fitted to."""
    checked_labels(logits, classes)
    calibration = LabelCalibration.by_member(ensemble.label_calibrations)
    thresholds = ensemble.thresholds or LabelThresholds.neutral(len(classes))
    probabilities_NK = calibration.probabilities(stacked(logits["logits"]))
    return with_label_sets(logits, classes, probabilities_NK, thresholds), calibration, thresholds


def calibrated_label_sets(
    logits: pd.DataFrame, classes: tuple[str, ...], ensemble: EnsembleResult | None = None
) -> tuple[pd.DataFrame, LabelCalibration, LabelThresholds]:
    """Fit calibration and thresholds on all images but the test split; return predictions of all.

    Args:
        logits: rows of the manifest with `logits`.
        classes: the model's labels, in the order of its outputs.
        ensemble: that the logits are of, if the model is one: it has both already.

    Raises:
        RunError: if the model's outputs are not finite numbers.
        DataError: if a label is not one of the model.
    """
    if ensemble is not None:
        return _of_ensemble(logits, classes, ensemble)
    checked_labels(logits, classes)
    held = logits[logits["split"] != "test"]
    calibration, thresholds = (
        LabelCalibration.none(len(classes)),
        LabelThresholds.neutral(len(classes)),
    )
    if len(held):
        labels_NK, logits_NK = (
            label_sets.matrix(list(held["label"]), classes),
            stacked(held["logits"]),
        )
        calibration = fit_label_calibration(logits_NK, labels_NK)
        thresholds = fit_label_thresholds(calibration.probabilities(logits_NK), labels_NK)
    probabilities_NK = calibration.probabilities(stacked(logits["logits"]))
    return with_label_sets(logits, classes, probabilities_NK, thresholds), calibration, thresholds
