"""Write the report as a self-contained HTML file: no network, no scripts, no other files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.config import before_image, meaning_of
from patchline.pipeline.evaluation.galleries import GalleryImage
from patchline.pipeline.evaluation.html_page import (
    picture,
    render,
    thumbnail,
    tinted,
    vector_graphic,
)
from patchline.pipeline.evaluation.metrics.classification import ClassMetrics
from patchline.pipeline.evaluation.metrics.confusion_matrix import confused_pairs, shown_matrix
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.names import METRICS, MetricName
from patchline.pipeline.evaluation.plots import (
    numbers_without_font,
    reliability_diagram,
    training_curves,
)
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.evaluation.slices import ImageSubset
from patchline.pipeline.evaluation.visual_guide.covering_result import MapKind
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.atomic_files import write_text

Array = np.ndarray[Any, Any]
PixelsOf = Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]
"""Returns the image (H, W, C) of a row of the table of predictions."""

_KEY_METRICS = ("balanced_accuracy", "macro_f1", "mcc", "roc_auc", "log_loss", "ece")
_MOST_OPEN_CLASSES, _MOST_LISTED_CLASSES = 12, 500
_OPEN_IMAGES = 12
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


class PagePictures(NamedTuple):
    """What the page shows besides the text: images, curves and maps."""

    pixels_of: PixelsOf
    """Returns the images of the galleries."""
    history: Sequence[Mapping[str, Any]] = ()
    """Training history, for the training curves."""
    preview: Path | None = None
    """Preview image of the augmentation."""
    looked: WhereItLooked = WhereItLooked()
    """Where the model looked."""


class _Gallery(NamedTuple):
    key: str
    title: str
    words: str
    images: list[tuple[GalleryImage, str, str]]
    """Each image with its data URI, and that of the map over it; the latter may be empty."""


def write_html(
    report: EvaluationReport,
    page: ReportPage,
    pictures: PagePictures,
    file: Path,
) -> None:
    """Write the report.

    Args:
        report: the metrics.
        page: the text.
        pictures: what the page shows besides the text.
        file: the HTML file to write.
    """
    classes = sorted(report.by_class, key=_worst_first)
    text = render(
        "report.html.j2",
        report=report,
        page=page,
        notes=[*page.notes, *_notes(report, page)],
        key_metrics=[row for row in _metric_rows(report) if row[0] in _KEY_METRICS],
        metrics=_metric_rows(report),
        pairs=confused_pairs(report.cells, report.classes),
        matrix=shown_matrix(report.cells, report.classes),
        worst=classes[:_MOST_OPEN_CLASSES],
        class_numbers=numbers_without_font(report.classes),
        other_classes=classes[_MOST_OPEN_CLASSES:_MOST_LISTED_CLASSES],
        unlisted_classes=max(0, len(classes) - _MOST_LISTED_CLASSES),
        galleries=[gallery for gallery in _galleries(report, pictures) if gallery.images],
        open_images=_OPEN_IMAGES,
        explained=pictures.looked.pages,
        reliability=vector_graphic(reliability_diagram(report)),
        mean_confidence=_mean_confidence(report),
        slices=by_column(report.slices),
        slice_meanings={column: meaning_of(column) for column in report.config.slices},
        curves=vector_graphic(training_curves(pictures.history)) if pictures.history else "",
        preview=picture(pictures.preview) if pictures.preview else "",
    )
    write_text(file, text)


def _mean_confidence(report: EvaluationReport) -> float:
    """Return the mean of the highest probability of each image."""
    images = sum(bin_.images for bin_ in report.reliability)
    return sum(bin_.images * bin_.confidence for bin_ in report.reliability) / images


def _worst_first(row: ClassMetrics) -> tuple[bool, float, float]:
    """Sort by F1, then recall; classes without images last."""
    return row.images == 0, row.f1.value, row.recall.value


def _metric_rows(report: EvaluationReport) -> list[tuple[str, MetricName, MetricEstimate]]:
    rows = []
    for key, estimate in report.metrics.items():
        name = key.removeprefix(f"{report.split}/")
        rows.append((name, METRICS[name], estimate))
    return rows


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


def _galleries(report: EvaluationReport, pictures: PagePictures) -> list[_Gallery]:
    looked = pictures.looked

    def shown(
        images: Sequence[GalleryImage], maps: Mapping[int, Array] = MappingProxyType({})
    ) -> list[tuple[GalleryImage, str, str]]:
        galleries = []
        for image in images:
            pixels, seen_hw = pictures.pixels_of(image.position), maps.get(image.position)
            over = "" if seen_hw is None else thumbnail(tinted(seen_hw, pixels))
            galleries.append((image, thumbnail(pixels), over))
        return galleries

    doubted = report.suspected_labels
    return [
        _Gallery(
            "confident-errors",
            "Most confident errors",
            "Wrong predictions with the highest confidence first."
            + (_MAP_WORDS[looked.kind] if looked.maps else ""),
            shown(report.most_confident_errors, looked.maps),
        ),
        _Gallery(
            "label-errors",
            "Likely label errors",
            f"Confident learning flags {doubted:,} of {report.images:,} labels, most suspicious "
            "first. Check them against the image: a model that confuses two classes also flags "
            "correct labels.",
            shown(report.likely_label_errors),
        ),
        _Gallery(
            "least-certain",
            "Least certain",
            "Images with the smallest margin between the two most probable classes first.",
            shown(report.least_certain),
        ),
    ]


def by_column(slices: Sequence[ImageSubset]) -> dict[str, list[ImageSubset]]:
    """Return slices of the images by their column."""
    columns: dict[str, list[ImageSubset]] = {}
    for part in slices:
        columns.setdefault(part.column, []).append(part)
    return columns
