"""Write a report into a folder: the page, the report as JSON, all predictions and the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.chosen_images import EXPLANATIONS, TITLES
from patchline.pipeline.evaluation.html_report import (
    PagePictures,
    PixelsOf,
    ReportPage,
    WhereItLooked,
    write_html,
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
from patchline.pipeline.evaluation.tasks import Task

PREDICTIONS_FILE = "predictions.parquet"
"""In the folder: the predictions that the report is computed from."""
_MOST_INDENTED_CLASSES = 100


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
    pictures = PagePictures(contents.pixels_of, contents.history, contents.preview, looked)
    parts = task.parts(report, contents.page, looked)
    save_figure(reliability_diagram(report, parts.diagram), folder / RELIABILITY)
    for each in parts.galleries:
        plot_gallery(each.images, contents.pixels_of, folder / each.plot, report.classes)
    if contents.history:
        save_figure(training_curves(contents.history, parts.curves), folder / CURVES)
    parts.write_plots(folder)
    write_html(report, parts, contents.page, pictures, html)
    return html


def _looked(explanations: Explanations, folder: Path) -> WhereItLooked:
    """Return what the page shows of the explanations; the maps are in it afterwards."""
    maps = explanations.maps()
    if explanations.maps_file is not None:
        explanations.maps_file.unlink()
    titles = {f"{EXPLANATIONS}/{page}.html": title for page, title in TITLES.items()}
    titled = {path: title for path, title in titles.items() if (folder / path).is_file()}
    return WhereItLooked(maps, explanations.maps_kind, titled)
