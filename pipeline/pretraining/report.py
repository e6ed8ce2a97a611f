"""The report on an encoder that was trained without labels: its loss, with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchline.pipeline.evaluation.html_page import picture, render, vector_graphic
from patchline.pipeline.evaluation.html_report import ReportPage
from patchline.pipeline.evaluation.plots import training_curves
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.pretraining.job import PicturedImage

LOSS = "test/loss"
HTML_FILE, JSON_FILE = "report.html", "report.json"


class PretrainingReport(FrozenModel):
    """The result of a pre-training on the test images."""

    name: str
    """Of the registered encoder."""
    objective: str
    data_fingerprint: str
    images: int
    metrics: dict[str, MetricEstimate]
    """The mean loss, `test/loss`, with its t interval."""
    pictures: tuple[PicturedImage, ...]

    @property
    def loss(self) -> MetricEstimate:
        """Mean loss of the test images."""
        return self.metrics[LOSS]

    @property
    def warning(self) -> str:
        """Nothing: only a classifier that starts from an encoder shows how good it is."""
        return ""


def write_report(
    report: PretrainingReport,
    page: ReportPage,
    folder: Path,
    history: Sequence[Mapping[str, Any]],
    preview: Path | None,
) -> Path:
    """Write the report as JSON and as a self-contained page, and return the page's path.

    Args:
        report: the metrics.
        page: the text.
        folder: has the pictures, and receives the files.
        history: of the training.
        preview: picture of the augmentation.
    """
    write_text(folder / JSON_FILE, report.model_dump_json(indent=2) + "\n")
    images = [
        (image.path, [(view.title, picture(folder / view.file)) for view in image.views])
        for image in report.pictures
    ]
    text = render(
        "pretraining.html.j2",
        report=report,
        page=page,
        images=images,
        curves=vector_graphic(training_curves(history, ("loss",))) if history else "",
        preview=picture(preview) if preview else "",
    )
    write_text(folder / HTML_FILE, text)
    return folder / HTML_FILE
