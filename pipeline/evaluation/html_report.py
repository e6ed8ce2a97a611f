"""The report as one HTML file that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.evaluation.config import SLICE_COLUMNS
from pipeline.evaluation.confusion_matrix import confused_pairs, shown_matrix
from pipeline.evaluation.galleries import GalleryImage
from pipeline.evaluation.html_page import picture, render, thumbnail
from pipeline.evaluation.report import EvaluationReport
from pipeline.evaluation.slices import Slice
from pipeline.evaluation.svg_charts import curve_charts, reliability_chart
from pipeline.files.atomic_files import write_text
from pipeline.metrics.classification import ClassMetrics
from pipeline.metrics.intervals import MetricEstimate
from pipeline.metrics.names import METRICS, MetricName
from pipeline.section import Section

PixelsOf = Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]
"""Returns the image (H, W, C) of a row of the table of predictions."""

_KEY_FIGURES = ("balanced_accuracy", "macro_f1", "mcc", "roc_auc", "log_loss", "ece")
_MOST_OPEN_CLASSES, _MOST_LISTED_CLASSES = 12, 500
_OPEN_IMAGES = 12
_MOST_NAMED_CLASSES = 5


class ReportPage(Section):
    """What the page says beside the figures."""

    title: str
    lead: str = ""
    """A sentence under the title: what the images are."""
    facts: dict[str, str]
    """Short facts about run, data and model, in order."""
    notes: tuple[str, ...]
    """What a reader should know about the data."""
    settings: dict[str, str]
    """The resolved config, dotted."""


class _Gallery(NamedTuple):
    key: str
    title: str
    words: str
    images: list[tuple[GalleryImage, str]]
    """With their pictures."""


def write_html(
    report: EvaluationReport,
    page: ReportPage,
    pixels_of: PixelsOf,
    file: Path,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    preview: Path | None = None,
) -> None:
    """Write the report.

    Args:
        report: the figures.
        page: the words.
        pixels_of: gives the images of the galleries.
        file: where the page goes.
        history: of the training, for its curves.
        preview: picture of the augmentation.
    """
    classes = sorted(report.by_class, key=_worst_first)
    text = render(
        "report.html.j2",
        report=report,
        page=page,
        notes=[*page.notes, *_notes(report, page)],
        key_figures=[row for row in _metric_rows(report) if row[0] in _KEY_FIGURES],
        metrics=_metric_rows(report),
        pairs=confused_pairs(report.cells, report.classes),
        matrix=shown_matrix(report.cells, report.classes),
        worst=classes[:_MOST_OPEN_CLASSES],
        other_classes=classes[_MOST_OPEN_CLASSES:_MOST_LISTED_CLASSES],
        unlisted_classes=max(0, len(classes) - _MOST_LISTED_CLASSES),
        galleries=[gallery for gallery in _galleries(report, pixels_of) if gallery.images],
        open_images=_OPEN_IMAGES,
        chart=reliability_chart(report),
        calibration=_calibration_words(report.temperature),
        slices=_by_column(report.slices),
        slice_meanings=SLICE_COLUMNS,
        curves=curve_charts(history),
        preview=picture(preview) if preview else "",
    )
    write_text(file, text)


def _worst_first(figures: ClassMetrics) -> tuple[bool, float, float]:
    """Sort by F1, then recall; classes without images last."""
    return figures.images == 0, figures.f1.value, figures.recall.value


def _metric_rows(report: EvaluationReport) -> list[tuple[str, MetricName, MetricEstimate]]:
    rows = []
    for key, estimate in report.metrics.items():
        name = key.removeprefix(f"{report.split}/")
        rows.append((name, METRICS[name], estimate))
    return rows


def _notes(report: EvaluationReport, page: ReportPage) -> list[str]:
    """Return what the figures themselves warn of, unless the page says it already."""
    found = []
    few = f"only {report.images} {report.split} images"
    said = any(note.startswith(few) for note in page.notes)
    if report.images < report.config.small_sample and not said:
        found.append(f"{few}: the figures are rough")
    absent = [figures.name for figures in report.by_class if figures.images == 0]
    if absent:
        named = ", ".join(absent[:_MOST_NAMED_CLASSES])
        rest = len(absent) - _MOST_NAMED_CLASSES
        more = f" and {rest} more" if rest > 0 else ""
        found.append(
            f"no {report.split} image of {named}{more}: means over classes leave "
            f"{'it' if len(absent) == 1 else 'them'} out"
        )
    return found


def _galleries(report: EvaluationReport, pixels_of: PixelsOf) -> list[_Gallery]:
    def shown(images: Sequence[GalleryImage]) -> list[tuple[GalleryImage, str]]:
        return [(image, thumbnail(pixels_of(image.position))) for image in images]

    doubted = report.suspected_labels
    return [
        _Gallery(
            "confident-errors",
            "Most confident errors",
            "Where the model was sure and wrong, surest first.",
            shown(report.most_confident_errors),
        ),
        _Gallery(
            "label-errors",
            "Likely label errors",
            f"Confident learning doubts {doubted} of the {report.images} labels, the most doubtful "
            "first. The image decides who is right: a model that confuses two classes doubts "
            "right labels too.",
            shown(report.likely_label_errors),
        ),
        _Gallery(
            "least-certain",
            "Least certain",
            "Where the two most probable classes are closest, whether the answer was right or not.",
            shown(report.least_certain),
        ),
    ]


def _calibration_words(temperature: float) -> str:
    if temperature > 1.05:  # noqa: PLR2004 - five percent make no visible difference
        return "The raw scores were too sure of themselves, so they are made milder"
    if temperature < 0.95:  # noqa: PLR2004 - the same
        return "The raw scores were too cautious, so they are made sharper"
    return "The raw scores were almost right as they are"


def _by_column(slices: Sequence[Slice]) -> dict[str, list[Slice]]:
    columns: dict[str, list[Slice]] = {}
    for part in slices:
        columns.setdefault(part.column, []).append(part)
    return columns
