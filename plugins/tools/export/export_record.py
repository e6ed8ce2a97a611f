"""What is known about an export: `export.json`, and the sentence if it is refused."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.processor_check import RECORD_FILE
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.export.agreement import Agreement
from patchline.plugins.tools.export.latency import BatchLatency


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
        reasons = [
            f"{each.name}: {', and '.join(each.agreement.failures)} ({each.agreement.accuracies})"
            for each in self.tried
        ]
        return (
            f"The form {self.form} of {self.model}, version {self.version}, is refused, because it "
            f"does not agree with the package on {self.compared_on}. {'; '.join(reasons)}. Use the "
            "package itself, or another form."
        )

    def save(self, folder: Path) -> None:
        """Write the record."""
        write_text(folder / RECORD_FILE, self.model_dump_json(indent=2) + "\n")
