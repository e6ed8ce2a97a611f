"""Write a report into a folder: the page, the report as JSON, all predictions and the plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.config import meaning_of
from patchline.pipeline.evaluation.galleries import EXPLANATIONS, TITLES
from patchline.pipeline.evaluation.html_page import (
    picture,
    render,
    thumbnail,
    tinted,
    vector_graphic,
)
from patchline.pipeline.evaluation.html_report import (
    Gallery,
    ReportPage,
    ReportParts,
    WhereItLooked,
)
from patchline.pipeline.evaluation.plots import (
    CURVES,
    RELIABILITY,
    plot_gallery,
    reliability_diagram,
    save_figure,
    training_curves,
)
from patchline.pipeline.evaluation.prediction_job import Explanations
from patchline.pipeline.evaluation.report import ModelReport
from patchline.pipeline.evaluation.slices import ImageSubset
from patchline.pipeline.evaluation.tasks import Task
from patchline.pipeline.workspace.files.atomic_files import write_text

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
    """Where the model looked; pages lie in the folder already."""


def write_report(
    task: Task[Any], report: ModelReport, contents: ReportContents, folder: Path
) -> Path:
    """Write the page, the report as JSON, all predictions and the plots; return the page's path."""
    predictions.save(contents.table, folder / PREDICTIONS_FILE)
    indent = 2 if len(report.classes) <= _MOST_INDENTED_CLASSES else None
    report.to_file(folder / "report.json", indent=indent)
    html = folder / "report.html"
    looked = _looked(contents.explanations, folder)
    parts = task.parts(report, contents.page, looked)
    save_figure(reliability_diagram(report, parts.diagram), folder / RELIABILITY)
    for each in parts.galleries:
        plot_gallery(each.images, contents.pixels_of, folder / each.plot, report.classes)
    if contents.history:
        save_figure(training_curves(contents.history, parts.curves), folder / CURVES)
    parts.write_plots(folder)
    write_html(report, parts, contents, looked, html)
    return html


def _looked(explanations: Explanations, folder: Path) -> WhereItLooked:
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
        parts: what its task shows.
        contents: the text, the images and the training.
        looked: where the model looked.
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
        galleries=[_pictured(each, contents, looked) for each in parts.galleries if each.images],
        open_images=_OPEN_IMAGES,
        explained=looked.pages,
        reliability=vector_graphic(reliability_diagram(report, parts.diagram)),
        by_column=_by_column,
        slice_meanings={column: meaning_of(column) for column in report.config.slices},
        curves=vector_graphic(training_curves(contents.history, parts.curves))
        if contents.history
        else "",
        preview=picture(contents.preview) if contents.preview else "",
        **parts.values,
    )
    write_text(file, text)


def _pictured(gallery: Gallery, contents: ReportContents, looked: WhereItLooked) -> Gallery:
    """Return it with the data URI of each image, and of the map over it, which may be empty."""
    shown = []
    for image in gallery.images:
        pixels = contents.pixels_of(image.position)
        seen_hw = looked.maps.get(image.position) if gallery.is_mapped else None
        over = "" if seen_hw is None else thumbnail(tinted(seen_hw, pixels))
        shown.append((image, thumbnail(pixels), over))
    return gallery._replace(images=shown)


def _by_column(slices: Sequence[ImageSubset]) -> dict[str, list[ImageSubset]]:
    """Return slices of the images by their column."""
    columns: dict[str, list[ImageSubset]] = {}
    for part in slices:
        columns.setdefault(part.column, []).append(part)
    return columns
