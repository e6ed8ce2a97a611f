"""Write the report of a multi-label model: a self-contained HTML file, and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation import predictions as predictions_file
from patchline.pipeline.evaluation.html_page import picture, render, thumbnail, vector_graphic
from patchline.pipeline.evaluation.html_report import ReportPage
from patchline.pipeline.evaluation.multi_label.label_set_galleries import LabelSetImage
from patchline.pipeline.evaluation.multi_label.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.plots import (
    CURVES,
    OF_LABEL_SETS,
    RELIABILITY,
    diagram_of,
    save_figure,
    training_curves,
)
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.metrics.label_calibration import listed
from patchline.pipeline.metrics.multi_label.label_set_metrics import LabelMetrics
from patchline.pipeline.metrics.multi_label.names import MULTI_LABEL_METRICS

PixelsOf = Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]
_KEY_METRICS = ("micro_mAP", "macro_f1", "samples_f1", "exact_match", "ranking_loss", "ece")
_MOST_OPEN_LABELS, _MOST_LISTED_LABELS = 20, 500
_OPEN_IMAGES = 12
_MOST_INDENTED_LABELS = 100


class _Gallery(NamedTuple):
    key: str
    title: str
    words: str
    images: list[tuple[LabelSetImage, str]]
    """Each image with its data URI."""


def write_label_set_report(
    report: MultiLabelReport,
    page: ReportPage,
    table: Any,
    pixels_of: PixelsOf,
    folder: Path,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    preview: Path | None = None,
) -> Path:
    """Write the page, the report as JSON, all predictions and the plots; return the page's path.

    Args:
        report: the report to write.
        page: the text of the page.
        table: all predictions, numbered from 0; may include other splits.
        pixels_of: returns the image (H, W, C) of a row of `table`.
        folder: receives the files.
        history: training history.
        preview: preview image of the augmentation.
    """
    predictions_file.save(table, folder / "predictions.parquet")
    indent = 2 if len(report.classes) <= _MOST_INDENTED_LABELS else None
    write_text(folder / "report.json", report.model_dump_json(indent=indent) + "\n")
    curves = training_curves(history, ("loss",)) if history else None
    diagram = diagram_of(report.reliability, report.uncalibrated_reliability, OF_LABEL_SETS)
    save_figure(diagram, folder / RELIABILITY)
    if curves:
        save_figure(curves, folder / CURVES)
    labels = sorted(report.by_label, key=_worst_first)
    metrics = [
        (key.removeprefix(f"{report.split}/"), estimate) for key, estimate in report.metrics.items()
    ]
    text = render(
        "label_set_report.html.j2",
        report=report,
        page=page,
        notes=[*page.notes, *report.notes],
        metrics=[(key, MULTI_LABEL_METRICS[key], estimate) for key, estimate in metrics],
        key_metrics=[
            (key, MULTI_LABEL_METRICS[key], estimate)
            for key, estimate in metrics
            if key in _KEY_METRICS
        ],
        worst=labels[:_MOST_OPEN_LABELS],
        other_labels=labels[_MOST_OPEN_LABELS:_MOST_LISTED_LABELS],
        unlisted_labels=max(0, len(labels) - _MOST_LISTED_LABELS),
        calibration=report.calibration.sentence(report.classes),
        thresholds=report.thresholds.sentence(report.classes),
        unfitted=frozenset(report.thresholds.unfitted(report.classes)),
        unknown=listed(report.unknown_labels),
        galleries=[gallery for gallery in _galleries(report, pixels_of) if gallery.images],
        open_images=_OPEN_IMAGES,
        reliability=vector_graphic(diagram),
        curves=vector_graphic(curves) if curves else "",
        preview=picture(preview) if preview else "",
    )
    html = folder / "report.html"
    write_text(html, text)
    return html


def _worst_first(row: LabelMetrics) -> tuple[bool, float]:
    """Sort by average precision; labels without images last."""
    return row.average_precision is None, (
        row.average_precision.value if row.average_precision else 0.0
    )


def _galleries(report: MultiLabelReport, pixels_of: PixelsOf) -> list[_Gallery]:
    def shown(images: Sequence[LabelSetImage]) -> list[tuple[LabelSetImage, str]]:
        return [(image, thumbnail(pixels_of(image.position))) for image in images]

    return [
        _Gallery(
            "false-positives",
            "False positives",
            f"{report.false_positives:,} predicted labels are not in the data: the most probable "
            "first, one for each image.",
            shown(report.confident_false_positives),
        ),
        _Gallery(
            "false-negatives",
            "False negatives",
            f"{report.false_negatives:,} labels are in the data and not predicted: the least "
            "probable first, one for each image.",
            shown(report.confident_false_negatives),
        ),
        _Gallery(
            "missing-labels",
            "Labels that may be missing",
            f"Confident learning suspects that {report.suspected_labels:,} labels are missing in "
            "the data, most suspicious first. Check them against the image: a model that confuses "
            "two labels also suspects correct ones.",
            shown(report.missing_labels),
        ),
    ]
