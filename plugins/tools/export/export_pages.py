"""What is known about an export: `export.json`, in words, and on the pages in MLflow.

A version's own page and that of its run get a table of its exports, with what was measured of each;
a tag of each form says the same in a few words. `patchline serve MODEL --form FORM` finds the files
among the artifacts of the run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import first_line
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import read_recorded_fit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import DESCRIPTION_FILE
from patchline.pipeline.packaging.processor_check import RECORD_FILE
from patchline.pipeline.registry.registered_models import ModelReference, run_of, write_record
from patchline.pipeline.registry.served_package import (
    EXPORT_FOLDER,
    EXPORTS_RECORD,
    EXPORTS_TAG,
    SERVED_FORMS,
)
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.tracking.tracking_store import client
from patchline.plugins.tools.export.comparison import (
    LEAST_AGREEMENT,
    Agreement,
    BatchLatency,
    percent,
)
from patchline.plugins.tools.export.container_form import ServedVersion

logger = logging.getLogger(__name__)

NOTE_TAG = "mlflow.note.content"
FORM_TAG = "patchline.export."
"""Of a version and of its run, with the form behind it: what was measured, in a few words."""
_OWN_SECTION = re.compile(
    r"^### Exports[ \t\r]*$"
    r"(?:\n[ \t\r]*$)*(?:\n\|.*$)*(?:\n[ \t\r]*$)*"
    r"(?:\nTimes of one thread on .*$)?(?:\n`patchline serve MODEL --form .*$)?",
    re.MULTILINE,
)
"""What `exports.md.j2` has written: the title, one table and the sentences below it."""
_DESCRIBING = (RECORD_FILE, "README.md")
_LONGEST = 4000
Row = Mapping[str, Any]


def list_export(reference: ModelReference, record: ExportRecord, folder: Path) -> str:
    """List an export, or its refusal, on the pages of its version and of the version's run.

    A refusal does not replace an export of the same form that was written before.

    Args:
        reference: the version that was exported.
        record: the export's record: what was measured, and what was chosen.
        folder: the folder of the export; nothing is read there if the export was refused.

    Returns:
        What the pages lack of it, as a clause; empty if nothing.
    """
    from mlflow.exceptions import MlflowException

    store = client()
    try:
        version = store.get_model_version(reference.name, reference.version)
        rows = exports_in(version.tags)
        if record.chosen is None and rows.get(record.form, {}).get("folder"):
            return ""
        run_id, missing = _run(reference)
        place = _log_export(run_id, record, folder) if run_id and record.chosen is not None else ""
        rows[record.form] = _row(record, place)
        write_record(reference, EXPORTS_RECORD, json.dumps(rows))
        words = _in_words(rows[record.form])
        key = FORM_TAG + record.form
        store.set_model_version_tag(reference.name, reference.version, key, words)
        section = _section(rows)
        text = _with_section(version.description or "", section)
        store.update_model_version(reference.name, reference.version, text)
        if run_id:
            store.set_tag(run_id, key, words)
            before = store.get_run(run_id).data.tags.get(NOTE_TAG, "")
            store.set_tag(run_id, NOTE_TAG, _with_section(before, section))
    except (MlflowException, OSError) as error:
        logger.warning("The export could not be listed in MLflow: %s", error)
        return f"it is not listed in MLflow ({first_line(error)})"
    return missing


def exports_in(tags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the exports that the tags of a version list, by form; none if a tag is damaged."""
    try:
        rows = json.loads(tags.get(EXPORTS_TAG, "{}"))
    except ValueError:
        return {}
    if not isinstance(rows, dict):
        return {}
    return {str(form): dict(row) for form, row in rows.items() if isinstance(row, dict)}


def _run(reference: ModelReference) -> tuple[str, str]:
    """Return the id of the version's run, or nothing and why, as a clause."""
    from mlflow.exceptions import MlflowException

    from patchline.pipeline.errors import ModelReferenceError

    try:
        return str(client().get_run(run_of(reference)).info.run_id), ""
    except (ModelReferenceError, MlflowException):
        return "", (
            "its version has no run in MLflow that would hold its files, so `patchline serve "
            "--form` cannot find it"
        )


def _log_export(run_id: str, record: ExportRecord, folder: Path) -> str:
    """Log what describes an export, and its files if a server may serve it; return their folder."""
    files = [file for file in folder.iterdir() if file.is_file()]
    if record.form not in SERVED_FORMS:
        files = [file for file in files if file.name in _DESCRIBING]
    content = record.model_dump_json().encode()
    number = hashlib.sha256(content).hexdigest()[:8]
    place = f"{EXPORT_FOLDER}/{record.form}-{number}"
    with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
        for file in files:
            shutil.copyfile(file, Path(scratch) / file.name)
        client().log_artifacts(run_id, scratch, place)
    return place


def _row(record: ExportRecord, place: str) -> dict[str, Any]:
    """Return what the pages say of an export."""
    best = record.chosen or max(record.tried, key=lambda each: each.agreement.labels.value)
    return {
        "folder": place,
        "refused": record.chosen is None,
        "name": best.name,
        **_agreement(best),
        "bytes": best.bytes,
        "speedup": best.speedup,
        "batches": {
            str(each.batch_size): [each.form_milliseconds, each.package_milliseconds]
            for each in best.latency
        },
        "processor": record.processor.name,
    }


def _agreement(form: TriedForm) -> dict[str, Any]:
    labels = form.agreement.labels
    return {
        "same": [labels.value, labels.low, labels.high],
        "images": labels.n,
        "largest": form.agreement.largest_difference,
        "labels": "same labels" if form.agreement.is_multi_label else "same label",
    }


def _in_words(row: Row) -> str:
    state = "refused: " if row["refused"] else ""
    text = f"{state}{row['labels']} on {percent(row['same'][0])} of {row['images']:,} images"
    return f"{text}, {row['speedup']:.2g} times as fast" if row["batches"] else text


def _section(rows: Mapping[str, Row]) -> str:
    """Return the table of all exports, in Markdown."""
    return render_markdown(
        "exports.md.j2",
        __package__,
        rows=dict(sorted(rows.items())),
        sizes=sorted({int(size) for row in rows.values() for size in row["batches"]}),
        processors=sorted({str(row["processor"]) for row in rows.values()}),
        served=SERVED_FORMS,
        percent=percent,
    )


def _with_section(text: str, section: str) -> str:
    """Return a text with the section in the place of an earlier one, or at its end.

    What a person has written above or below that stays. If there is no room, the text has no
    section.
    """
    earlier = _OWN_SECTION.search(text)
    before = text[: earlier.start()] if earlier else text
    after = text[earlier.end() :] if earlier else ""
    parts = [before.rstrip(), section, after.strip("\r\n")]
    joined = "\n\n".join(part for part in parts if part)
    return joined if len(joined) <= _LONGEST else "\n\n".join(filter(None, parts[::2]))


class ProcessorRecord(FrozenModel):
    """The processor that an export was measured on."""

    name: str
    instructions: tuple[str, ...]


class TriedForm(FrozenModel):
    """One way to make a form, with what was measured."""

    name: str
    """The form and how it was made, such as `int8, static, 8-bit weights`."""
    details: dict[str, str]
    agreement: Agreement
    bytes: int
    """Size of its model files."""
    latency: tuple[BatchLatency, ...] = ()
    """The latency at each batch size; empty if the form is refused."""

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
    """The number of threads that each latency was measured with."""
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
        else read_recorded_fit(description.get("calibration"), description.get("temperature", 1.0)),
    )
    write_text(folder / "README.md", text)
