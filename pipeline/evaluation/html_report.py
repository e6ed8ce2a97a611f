"""What the page and the plots of a report show: its text, its tables, its galleries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.config import before_image
from patchline.pipeline.evaluation.metrics.classification import ClassMetrics
from patchline.pipeline.evaluation.metrics.confusion_matrix import confused_pairs, shown_matrix
from patchline.pipeline.evaluation.metrics.names import METRICS, MetricName
from patchline.pipeline.evaluation.plots import (
    CONFUSION,
    CONFUSION_SHARES,
    ERRORS,
    LABEL_ERRORS,
    OF_ONE_LABEL,
    UNCERTAIN,
    DiagramWords,
    numbers_without_font,
    plot_confusion_matrix,
)
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.evaluation.visual_guide.covering_result import MapKind
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import few_names

Array = np.ndarray[Any, Any]
_MAP_WORDS = {
    "attention": " The second picture shows where the model looked: bright parts got the most "
    "attention (rollout, arXiv 2005.00928), dark ones the least.",
    "gradient": " The second picture shows which parts support the predicted class, by gradient "
    "times pixel: the brighter, the more. This model's attention cannot be read.",
}


class ReportPage(FrozenModel):
    """The text of the page besides the metrics."""

    title: str
    lead: str = ""
    """A sentence under the title that describes the images."""
    facts: dict[str, str]
    """Short facts about run, data and model, in order."""
    notes: tuple[str, ...]
    """Notes about the data."""
    settings: dict[str, str]
    """The resolved config by dotted key."""


class WhereItLooked(NamedTuple):
    """Where the model looked in its worst errors, and pages that explain a prediction."""

    maps: Mapping[int, Array] = MappingProxyType({})
    """Maps (h, w) of at least 0, by row of the table of predictions."""
    kind: MapKind = "attention"
    pages: Mapping[str, str] = MappingProxyType({})
    """Titles by path relative to the report."""


class Gallery(NamedTuple):
    """Images that are shown because they are alike in something."""

    key: str
    title: str
    words: str
    images: Sequence[Any]
    plot: str
    """File with its plot."""
    is_mapped: bool = False
    """Whether the page shows where the model looked in them, if it is known."""


class ReportParts(NamedTuple):
    """What the page and the plots of a task have, beside those that every report has."""

    template: str
    names: Mapping[str, MetricName]
    """Of the metrics."""
    key_metrics: tuple[str, ...]
    """Those that come first."""
    rows: Sequence[Any]
    """Metrics of each class or label, the worst first."""
    open_rows: int
    """How many of them are shown at once."""
    notes: Sequence[str]
    galleries: tuple[Gallery, ...]
    diagram: DiagramWords
    curves: tuple[str, ...]
    """Of the training history."""
    values: Mapping[str, Any] = MappingProxyType({})
    """Further ones of the template."""
    write_plots: Callable[[Path], object] = str
    """Writes further plots into a folder."""


def parts_of_classes(
    report: EvaluationReport, page: ReportPage, looked: WhereItLooked
) -> ReportParts:
    """Return what the report of a model with one label for each image shows."""

    def plot_matrices(folder: Path) -> None:
        plot_confusion_matrix(report, folder / CONFUSION)
        plot_confusion_matrix(report, folder / CONFUSION_SHARES, shares=True)

    return ReportParts(
        "report.html.j2",
        METRICS,
        ("balanced_accuracy", "macro_f1", "mcc", "roc_auc", "log_loss", "ece"),
        sorted(report.by_class, key=_worst_first),
        12,
        _notes(report, page),
        _galleries(report, looked),
        OF_ONE_LABEL,
        ("loss", "accuracy"),
        {
            "pairs": confused_pairs(report.cells, report.classes),
            "matrix": shown_matrix(report.cells, report.classes),
            "class_numbers": numbers_without_font(report.classes),
            "mean_confidence": _mean_confidence(report),
        },
        plot_matrices,
    )


def _mean_confidence(report: EvaluationReport) -> float:
    """Return the mean of the highest probability of each image."""
    images = sum(bin_.images for bin_ in report.reliability)
    return sum(bin_.images * bin_.confidence for bin_ in report.reliability) / images


def _worst_first(row: ClassMetrics) -> tuple[bool, float, float]:
    """Sort by F1, then recall; classes without images last."""
    return row.images == 0, row.f1.value, row.recall.value


def _notes(report: EvaluationReport, page: ReportPage) -> list[str]:
    """Return warnings about the metrics, unless the page already has them."""
    notes = [report.groups_note] if report.groups_note else []
    kind = before_image(report.split)
    few = f"only {report.images:,} {kind}images"
    said = any(note.startswith(few) for note in page.notes)
    if report.images < report.config.small_sample and not said:
        notes.append(f"{few}: the metrics are imprecise")
    absent = [row.name for row in report.by_class if row.images == 0]
    if absent:
        notes.append(f"no {kind}image of {few_names(absent)}: excluded from means over the classes")
    return notes


def _galleries(report: EvaluationReport, looked: WhereItLooked) -> tuple[Gallery, ...]:
    doubted = report.suspected_labels
    return (
        Gallery(
            "confident-errors",
            "Most confident errors",
            "Wrong predictions with the highest confidence first."
            + (_MAP_WORDS[looked.kind] if looked.maps else ""),
            report.most_confident_errors,
            ERRORS,
            is_mapped=True,
        ),
        Gallery(
            "label-errors",
            "Likely label errors",
            f"Confident learning flags {doubted:,} of {report.images:,} labels, most suspicious "
            "first. Check them against the image: a model that confuses two classes also flags "
            "correct labels.",
            report.likely_label_errors,
            LABEL_ERRORS,
        ),
        Gallery(
            "least-certain",
            "Least certain",
            "Images with the smallest margin between the two most probable classes first.",
            report.least_certain,
            UNCERTAIN,
        ),
    )
