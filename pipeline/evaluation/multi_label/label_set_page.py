"""Write the report of a multi-label model: a self-contained HTML file, and plots.

Shapes: N images, K labels; both models have the same labels in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, by_task
from patchline.pipeline.evaluation.comparison import (
    DIFFERENCE,
    ChangedMetric,
    ComparedModels,
    ComparisonSubject,
    PairedValues,
)
from patchline.pipeline.evaluation.html_report import (
    Gallery,
    ReportPage,
    ReportParts,
    WhereItLooked,
)
from patchline.pipeline.evaluation.metrics import curve_areas
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import LabelMetrics
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import (
    PairedMetric,
    ThresholdedScores,
    paired_metrics,
)
from patchline.pipeline.evaluation.metrics.names import MAIN, MULTI_LABEL_METRICS
from patchline.pipeline.evaluation.multi_label.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.plots import (
    FALSE_NEGATIVES,
    FALSE_POSITIVES,
    MISSING_LABELS,
    OF_LABEL_SETS,
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


Array = np.ndarray[Any, Any]


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
        models: the two, and the images.
        labels_NK: 1 where an image has a label, else 0.
        before: the answers of the champion.
        now: those of the challenger.
    """
    groups = ImageGroups.of(models.groups_N)
    return LabelSetComparison(
        **models.fields(len(labels_NK), groups),
        paired=paired_metrics(labels_NK, before, now, groups=groups),
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
