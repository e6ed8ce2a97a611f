"""The report as one HTML file that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.atomic_files import write_text
from pipeline.evaluation.report import EvaluationReport
from pipeline.section import Section

METRIC_NAMES = {
    "accuracy": ("Accuracy", "share of the images whose most probable class is right"),
    "top5_accuracy": ("Top-5 accuracy", "share whose class is among the five most probable"),
    "macro_precision": ("Precision", "mean over the classes"),
    "macro_recall": ("Recall", "mean over the classes; also called balanced accuracy"),
    "macro_f1": ("F1", "mean over the classes"),
    "log_loss": ("Log loss", "mean surprise at the true class, after calibration; less is better"),
}
_MOST_CONFUSED = 10


class ReportPage(Section):
    """What the page says beside the figures."""

    title: str
    facts: dict[str, str]
    """Short facts about run, data and model, in order."""
    notes: tuple[str, ...]
    """What a reader should know about the data."""
    settings: dict[str, str]
    """The resolved config, dotted."""


def write_html(
    report: EvaluationReport,
    page: ReportPage,
    images: np.ndarray[Any, Any],
    figures: dict[str, Path],
    file: Path,
) -> None:
    """Write the report.

    Args:
        report: the figures.
        page: the words.
        images: the prepared store, for the gallery.
        figures: headings and the pictures below them.
        file: where the page goes.
    """
    environment = Environment(
        loader=PackageLoader("pipeline.evaluation", ""), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    headline = report.metrics[f"{report.split}/accuracy"]
    text = environment.get_template("report.html.j2").render(
        report=report,
        page=page,
        headline=headline,
        metrics=_metric_rows(report),
        confused=_most_confused(report),
        figures={heading: _data_uri(path.read_bytes()) for heading, path in figures.items()},
        gallery=[
            (error, _data_uri(_png(images[error.row]))) for error in report.most_confident_errors
        ],
    )
    write_text(file, text)


def _metric_rows(report: EvaluationReport) -> list[dict[str, Any]]:
    rows = []
    for key, estimate in report.metrics.items():
        name, meaning = METRIC_NAMES[key.partition("/")[2]]
        rows.append({"name": name, "meaning": meaning, "estimate": estimate})
    return rows


def _most_confused(report: EvaluationReport) -> Sequence[tuple[str, str, int, int]]:
    counts = np.array(report.confusion)
    totals = counts.sum(axis=1)
    pairs = [
        (report.classes[row], report.classes[column], int(counts[row, column]), int(totals[row]))
        for row, column in zip(*np.nonzero(counts), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:_MOST_CONFUSED]


def _png(pixels_HWC: np.ndarray[Any, Any], smallest_side: int = 96) -> bytes:
    import cv2

    factor = max(1, smallest_side // pixels_HWC.shape[0])
    enlarged = np.repeat(np.repeat(pixels_HWC, factor, axis=0), factor, axis=1)
    bgr = np.ascontiguousarray(enlarged[:, :, ::-1])
    return bytes(cv2.imencode(".png", bgr)[1].tobytes())


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
