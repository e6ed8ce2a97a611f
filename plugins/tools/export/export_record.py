"""What is known about an export: `export.json`, in words, and the sentence if it is refused."""

from __future__ import annotations

import json
from pathlib import Path

from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import recorded
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.markdown import render_markdown
from patchline.pipeline.models.model_description import DESCRIPTION_FILE
from patchline.pipeline.packaging.processor_check import RECORD_FILE
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.export.comparison import (
    LEAST_AGREEMENT,
    Agreement,
    BatchLatency,
    percent,
)
from patchline.plugins.tools.export.container_files import ServedVersion


class ProcessorRecord(FrozenModel):
    """The processor that an export was measured on."""

    name: str
    instructions: tuple[str, ...]


class TriedForm(FrozenModel):
    """One way to make a form, with what was measured."""

    name: str
    """Such as `int8, static, 8-bit weights`."""
    details: dict[str, str]
    agreement: Agreement
    bytes: int
    """Size of its model files."""
    latency: tuple[BatchLatency, ...] = ()
    """Empty if it is refused."""

    @property
    def speedup(self) -> float:
        """Geometric mean over the batch sizes of how many times as fast as the package it is."""
        product = 1.0
        for each in self.latency:
            product *= each.speedup
        return float(product ** (1 / len(self.latency))) if self.latency else 0.0


class ExportRecord(FrozenModel):
    """An export: what it is, how it was measured, and what it was chosen from."""

    format_version: int = 1
    model: str
    version: str
    form: str
    compared_on: str
    """The images, such as `286 test images of its run`."""
    package_bytes: int
    """Size of `model.onnx`."""
    allowed_difference: float
    """Largest allowed difference in probability."""
    processor: ProcessorRecord
    threads: int
    """That each latency was measured with."""
    libraries: dict[str, str]
    """Versions of the libraries that compute."""
    chosen: TriedForm | None
    """None if the export is refused."""
    tried: tuple[TriedForm, ...]
    stored_images: int = 0
    """Number of compared images in `processor_check.npz`."""

    @property
    def refusal(self) -> str:
        """Why nothing was written; empty if something was."""
        if self.chosen is not None:
            return ""
        return render_markdown("refusal.md.j2", __package__, record=self)

    def save(self, folder: Path) -> None:
        """Write the record."""
        self.to_file(folder / RECORD_FILE)


def table(record: ExportRecord) -> list[str]:
    """Return what was measured, one line for each figure."""
    return render_markdown(
        "measured.md.j2", __package__, record=record, percent=percent
    ).splitlines()


def notes(record: ExportRecord) -> list[str]:
    """Return what a person should know about an export that was written."""
    values = {"record": record, "percent": percent, "least_agreement": LEAST_AGREEMENT}
    return render_markdown("notes.md.j2", __package__, **values).splitlines()


def write_readme(folder: Path, record: ExportRecord) -> None:
    """Write how to load the export, and what was measured."""
    file = folder / DESCRIPTION_FILE
    description = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found = description.get("label_calibration")
    text = render_markdown(
        "readme.md.j2",
        __package__,
        record=record,
        notes=notes(record),
        percent=percent,
        served=ServedVersion(record.model, record.version),
        image=description.get("image"),
        fit=LabelCalibration.model_validate(found)
        if found
        else recorded(description.get("calibration"), description.get("temperature", 1.0)),
    )
    write_text(folder / "README.md", text)
