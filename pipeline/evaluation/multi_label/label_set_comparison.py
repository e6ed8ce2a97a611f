"""Compare two multi-label models on the same test images: paired differences, and each label.

Shapes: N images, K labels; both models have the same labels in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from patchline.pipeline.evaluation.compared_models import ComparedModels
from patchline.pipeline.evaluation.comparison import p_value_text, points
from patchline.pipeline.evaluation.comparison_page import COMPARISON, DECISION, PAGE
from patchline.pipeline.evaluation.html_page import render
from patchline.pipeline.evaluation.promotion_decision import Decision
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.metrics.multi_label.label_set_metrics import average_precision
from patchline.pipeline.metrics.multi_label.names import MAIN, MULTI_LABEL_METRICS
from patchline.pipeline.metrics.multi_label.paired_bootstrap import (
    Answers,
    PairedMetric,
    paired_metrics,
)
from patchline.pipeline.provenance.provenance import UNKNOWN, ProvenanceSummary

Array = np.ndarray[Any, Any]
_SIGNIFICANCE = 0.05


class LabelChange(FrozenModel):
    """The change in one label's average precision."""

    name: str
    images: int
    """Number of images that have it."""
    champion: MetricEstimate | None
    """Average precision of the champion; None if no image has the label."""
    challenger: MetricEstimate | None

    @property
    def difference(self) -> float:
        """The challenger's minus the champion's; 0 if it is unknown."""
        if self.champion is None or self.challenger is None:
            return 0.0
        return self.challenger.value - self.champion.value


class LabelSetComparison(ComparedModels):
    """The result of a comparison; differences are the challenger minus the champion."""

    METRIC: ClassVar[str] = "its mAP"

    task: Literal["multi_label"] = "multi_label"
    paired: dict[str, PairedMetric]
    """Paired bootstrap of each metric, mAP first; a is the champion, b the challenger."""
    by_label: tuple[LabelChange, ...]
    """Every label, in the order of the model's outputs."""

    @property
    def sentence(self) -> str:
        """The result in one sentence, with the difference and its interval."""
        if not self.images:
            return (
                f"No test image is left for comparing challenger {self.challenger} with champion "
                f"{self.champion}."
            )
        pair = self.paired[MAIN]
        images = "1 image" if self.images == 1 else f"{self.images:,} images"
        caveat = f" Note that {self.caveat}." if self.caveat else ""
        return (
            f"On {images} {self.unused} by either, challenger {self.challenger} has an mAP of "
            f"{100 * pair.b:.1f}% and champion {self.champion} {100 * pair.a:.1f}%: "
            f"{points(pair.difference.value)} points (95% confidence interval "
            f"{points(pair.difference.low)} to {points(pair.difference.high)}; "
            f"{p_value_text(pair.p_value)}); {_meaning(pair)}.{caveat}"
        )


def _meaning(pair: PairedMetric) -> str:
    if not pair.difference.value:
        return "neither is better"
    if pair.p_value < _SIGNIFICANCE:
        return "the difference is significant"
    return "the difference may be due to chance"


def compare_label_sets(
    *,
    champion: str,
    challenger: str,
    classes: tuple[str, ...],
    labels_NK: Array,
    answers: tuple[Answers, Answers],
    left_out: dict[str, int],
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
        provenance: whether all images that the champion and the challenger have seen are recorded.
    """
    before, now = answers
    return LabelSetComparison(
        champion=champion,
        challenger=challenger,
        champion_provenance=provenance[0],
        challenger_provenance=provenance[1],
        images=len(labels_NK),
        left_out=left_out,
        paired=paired_metrics(labels_NK, before, now),
        by_label=tuple(
            LabelChange(
                name=name,
                images=int(labels_NK[:, k].sum()),
                champion=average_precision(before.probabilities_NK[:, k], labels_NK[:, k]),
                challenger=average_precision(now.probabilities_NK[:, k], labels_NK[:, k]),
            )
            for k, name in enumerate(classes)
        ),
    )


def write_label_set_comparison(
    comparison: LabelSetComparison, decision: Decision | None, folder: Path
) -> Path:
    """Write page, comparison and decision into the folder, and return the page.

    Args:
        comparison: the metrics of the two models.
        decision: whether the challenger was promoted; None shows the comparison alone.
        folder: receives `comparison.html`, `comparison.json` and `decision.json`.
    """
    write_text(folder / COMPARISON, comparison.model_dump_json(indent=2) + "\n")
    if decision:
        write_text(folder / DECISION, decision.model_dump_json(indent=2) + "\n")
    there = [change for change in comparison.by_label if change.images]
    text = render(
        "label_set_comparison.html.j2",
        comparison=comparison,
        decision=decision,
        pairs=[(MULTI_LABEL_METRICS[key], pair) for key, pair in comparison.paired.items()],
        changes=sorted(there, key=lambda change: change.difference),
        without_images=len(comparison.by_label) - len(there),
        points=lambda share: points(share).replace("-", "\N{MINUS SIGN}"),
        p_value=p_value_text,
    )
    page = folder / PAGE
    write_text(page, text)
    return page
