"""Compare two multi-label models on the same test images: paired differences, and each label.

Shapes: N images, K labels; both models have the same labels in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from patchline.pipeline.evaluation.comparison import (
    ComparedImages,
    ComparedModels,
    PairedValues,
)
from patchline.pipeline.evaluation.metrics import curve_areas
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import (
    PairedMetric,
    ThresholdedScores,
    paired_metrics,
)
from patchline.pipeline.evaluation.metrics.names import MAIN
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary

Array = np.ndarray[Any, Any]


class LabelChange(ComparedImages):
    """The change in one label's average precision, and the images that have the label."""

    name: str
    champion: MetricEstimate | None
    """Average precision of the champion; None if no image has the label, or all have it."""
    challenger: MetricEstimate | None

    @property
    def gain(self) -> float:
        """The challenger's minus the champion's; 0 if it is unknown."""
        if self.champion is None or self.challenger is None:
            return 0.0
        return self.challenger.value - self.champion.value


class LabelSetComparison(ComparedModels):
    """The result of a comparison; differences are the challenger minus the champion."""

    METRIC: ClassVar[str] = MAIN

    task: Literal["multi_label"] = "multi_label"
    paired: dict[str, PairedMetric]
    """Paired bootstrap of each metric, mAP first; a is the champion, b the challenger."""
    by_label: tuple[LabelChange, ...]
    """Every label, in the order of the model's outputs."""

    @property
    def main(self) -> PairedValues:
        """The mAP of both."""
        pair = self.paired[MAIN]
        return PairedValues(pair.a, pair.b, pair.difference, pair.p_value)


def compare_label_sets(
    *,
    champion: str,
    challenger: str,
    classes: tuple[str, ...],
    labels_NK: Array,
    answers: tuple[ThresholdedScores, ThresholdedScores],
    left_out: dict[str, int],
    groups_N: Sequence[Any] | Array | None = None,
    provenance: tuple[ProvenanceSummary, ProvenanceSummary] = (UNKNOWN, UNKNOWN),
) -> LabelSetComparison:
    """Compare two models on the same N images.

    Args:
        champion: name of the champion on the page, such as its version.
        challenger: name of the challenger on the page.
        classes: names of the K labels of both models.
        labels_NK: 1 where an image has a label, else 0.
        answers: of the champion and of the challenger.
        left_out: number of test images left out, by reason.
        groups_N: a value for each image, equal for images that are not independent, such as those
            of a patient; the test then takes whole groups.
        provenance: whether all images that the champion and the challenger have seen are recorded.
    """
    before, now = answers
    groups = ImageGroups.of(groups_N)
    return LabelSetComparison(
        champion=champion,
        challenger=challenger,
        champion_provenance=provenance[0],
        challenger_provenance=provenance[1],
        images=len(labels_NK),
        groups=groups.count if groups else None,
        left_out=left_out,
        paired=paired_metrics(labels_NK, before, now, groups=groups),
        by_label=tuple(
            LabelChange(
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
            for k, name in enumerate(classes)
        ),
    )


def _groups_with(label_N: Array, groups: ImageGroups | None) -> int | None:
    """Return the number of groups that the images with a label form; None if none has several."""
    own = groups.among(np.flatnonzero(label_N)) if groups else None
    return own.count if own else None
