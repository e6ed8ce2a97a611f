"""Write a report into a folder: the page, the report as JSON, all predictions and the plots.

The page is a self-contained HTML file: no network, no scripts, no other files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.config import SMALL_SAMPLE, before_image, meaning_of
from patchline.pipeline.evaluation.galleries import EXPLANATIONS, TITLES
from patchline.pipeline.evaluation.html_page import (
    picture,
    render,
    thumbnail,
    tint,
    vector_graphic,
)
from patchline.pipeline.evaluation.metrics.classification import ClassMetrics
from patchline.pipeline.evaluation.metrics.confusion_matrix import (
    build_shown_matrix,
    find_confused_pairs,
)
from patchline.pipeline.evaluation.metrics.names import METRICS, MetricName
from patchline.pipeline.evaluation.plots import (
    CONFUSION,
    CONFUSION_SHARES,
    CURVES,
    ERRORS,
    LABEL_ERRORS,
    OF_ONE_LABEL,
    RELIABILITY,
    UNCERTAIN,
    DiagramWords,
    numbers_without_font,
    plot_confusion_matrix,
    plot_gallery,
    reliability_diagram,
    save_figure,
    training_curves,
)
from patchline.pipeline.evaluation.prediction_job import Explanations
from patchline.pipeline.evaluation.report import EvaluationReport, ImageSubset, ModelReport
from patchline.pipeline.evaluation.visual_guide.covering_result import MapKind
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.atomic_files import write_text

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
    """Titles of the pages by their paths, relative to the report."""


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
    """Names of the metrics, by their keys."""
    key_metrics: tuple[str, ...]
    """Keys of the metrics that come first."""
    rows: Sequence[Any]
    """Metrics of each class or label, the worst first."""
    open_rows: int
    """How many of the rows are shown at once."""
    notes: Sequence[str]
    galleries: tuple[Gallery, ...]
    diagram: DiagramWords
    curves: tuple[str, ...]
    """Names of the curves in the training history, without the split."""
    values: Mapping[str, Any] = MappingProxyType({})
    """Further values that the template shows."""
    write_plots: Callable[[Path], object] = str
    """Writes further plots into a folder."""


PartsOf = Callable[[Any, ReportPage, WhereItLooked], ReportParts]
"""Returns what the report of a task shows beside that which every report does."""


def parts_of_classes(
    report: EvaluationReport, page: ReportPage, looked: WhereItLooked
) -> ReportParts:
    """Return what the report of a model with one label for each image shows."""

    def plot_matrices(folder: Path) -> None:
        plot_confusion_matrix(report, folder / CONFUSION)
        plot_confusion_matrix(report, folder / CONFUSION_SHARES, shares=True)

    confidence = sum(bin_.images * bin_.confidence for bin_ in report.reliability)
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
            "pairs": find_confused_pairs(report.cells, report.classes),
            "matrix": build_shown_matrix(report.cells, report.classes),
            "class_numbers": numbers_without_font(report.classes),
            "mean_confidence": confidence / report.images,
        },
        plot_matrices,
    )


def _worst_first(row: ClassMetrics) -> tuple[bool, float, float]:
    """Sort by F1, then recall; classes without images last."""
    return row.images == 0, row.f1.value, row.recall.value


def _notes(report: EvaluationReport, page: ReportPage) -> list[str]:
    """Return warnings about the metrics, unless the page already has them."""
    notes = [report.groups_note] if report.groups_note else []
    kind = before_image(report.split)
    few = f"only {report.images:,} {kind}images"
    said = any(note.startswith(few) for note in page.notes)
    if report.images < SMALL_SAMPLE and not said:
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


PREDICTIONS_FILE = "predictions.parquet"
"""In the folder: the predictions that the report is computed from."""
PixelsOf = Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]
"""Returns the image (H, W, C) of a row of the table of predictions."""
_MOST_INDENTED_CLASSES = 100
_MOST_LISTED, _OPEN_IMAGES = 500, 12


@dataclass(frozen=True)
class ReportContents:
    """What a report's folder has besides the metrics."""

    page: ReportPage
    """The text of the page."""
    table: pd.DataFrame
    """All predictions, numbered from 0; may include other splits."""
    pixels_of: PixelsOf
    """Returns the image (H, W, C) of a row of the table."""
    history: Sequence[Mapping[str, Any]] = ()
    """Training history."""
    preview: Path | None = None
    """Preview image of the augmentation."""
    explanations: Explanations = field(default_factory=Explanations)
    """Maps and pages that show where the model looked; the pages lie in the folder already."""


def write_report(
    parts_of: PartsOf, report: ModelReport, contents: ReportContents, folder: Path
) -> Path:
    """Write the page, the report as JSON, all predictions and the plots; return the page's path."""
    predictions.save(contents.table, folder / PREDICTIONS_FILE)
    indent = 2 if len(report.classes) <= _MOST_INDENTED_CLASSES else None
    report.to_file(folder / "report.json", indent=indent)
    html = folder / "report.html"
    looked = _describe_explanations(contents.explanations, folder)
    parts = parts_of(report, contents.page, looked)
    save_figure(reliability_diagram(report, parts.diagram), folder / RELIABILITY)
    for each in parts.galleries:
        plot_gallery(each.images, contents.pixels_of, folder / each.plot, report.classes)
    if contents.history:
        save_figure(training_curves(contents.history, parts.curves), folder / CURVES)
    parts.write_plots(folder)
    write_html(report, parts, contents, looked, html)
    return html


def _describe_explanations(explanations: Explanations, folder: Path) -> WhereItLooked:
    """Return what the page shows of the explanations; the maps are in it afterwards."""
    maps = explanations.maps()
    if explanations.maps_file is not None:
        explanations.maps_file.unlink()
    titles = {f"{EXPLANATIONS}/{page}.html": title for page, title in TITLES.items()}
    titled = {path: title for path, title in titles.items() if (folder / path).is_file()}
    return WhereItLooked(maps, explanations.maps_kind, titled)


def write_html(
    report: ModelReport,
    parts: ReportParts,
    contents: ReportContents,
    looked: WhereItLooked,
    file: Path,
) -> None:
    """Write the report as a self-contained file: no network, no scripts, no other files.

    Args:
        report: the metrics.
        parts: the parts of the page that its task shows.
        contents: the text, the images and the training.
        looked: the maps and pages that show where the model looked.
        file: the HTML file to write.
    """
    metrics = [
        (name, parts.names[name], estimate)
        for key, estimate in report.metrics.items()
        for name in [key.removeprefix(f"{report.split}/")]
    ]
    text = render(
        parts.template,
        report=report,
        page=contents.page,
        notes=[*contents.page.notes, *parts.notes],
        key_metrics=[row for row in metrics if row[0] in parts.key_metrics],
        metrics=metrics,
        worst=parts.rows[: parts.open_rows],
        others=parts.rows[parts.open_rows : _MOST_LISTED],
        unlisted=max(0, len(parts.rows) - _MOST_LISTED),
        galleries=[
            _add_pictures(each, contents, looked) for each in parts.galleries if each.images
        ],
        open_images=_OPEN_IMAGES,
        explained=looked.pages,
        reliability=vector_graphic(reliability_diagram(report, parts.diagram)),
        by_column=_by_column,
        small_sample=SMALL_SAMPLE,
        slice_meanings={column: meaning_of(column) for column in report.config.slices},
        curves=vector_graphic(training_curves(contents.history, parts.curves))
        if contents.history
        else "",
        preview=picture(contents.preview) if contents.preview else "",
        **parts.values,
    )
    write_text(file, text)


def _add_pictures(gallery: Gallery, contents: ReportContents, looked: WhereItLooked) -> Gallery:
    """Return it with the data URI of each image, and of the map over it, which may be empty."""
    shown = []
    for image in gallery.images:
        pixels = contents.pixels_of(image.position)
        seen_hw = looked.maps.get(image.position) if gallery.is_mapped else None
        over = "" if seen_hw is None else thumbnail(tint(seen_hw, pixels))
        shown.append((image, thumbnail(pixels), over))
    return gallery._replace(images=shown)


def _by_column(slices: Sequence[ImageSubset]) -> dict[str, list[ImageSubset]]:
    """Return slices of the images by their column."""
    columns: dict[str, list[ImageSubset]] = {}
    for part in slices:
        columns.setdefault(part.column, []).append(part)
    return columns
