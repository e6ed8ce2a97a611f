"""Write another form of a packaged model, if it agrees with the package on real images."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from patchline.pipeline.packaging import processor_check
from patchline.pipeline.packaging.package_digests import write_digests
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.workers.host.processors import this_processor
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugins.tools.export import container_form, onnx_forms, openvino_form, torch_form
from patchline.plugins.tools.export.comparison import (
    SECONDS,
    Agreement,
    Answers,
    ExportCandidate,
    FormInputs,
    compared,
    measured_latency,
)
from patchline.plugins.tools.export.comparison_images import ComparisonImages, StageProgress
from patchline.plugins.tools.export.export_record import (
    ExportRecord,
    ProcessorRecord,
    TriedForm,
    write_readme,
)

Array = np.ndarray[Any, Any]
Form = Literal["onnx", "int8", "openvino", "torch", "container"]
Round = Callable[[FormInputs], Iterator[ExportCandidate]]
_FIRST_BATCHES, _BATCH, _PIXELS = (1, 2, 7), 64, 16 * 224**2
_THREADS = 1
"""That latencies are measured with: the sessions of two forms would fight for more."""


def export(
    reference: ModelReference,
    form: Form,
    images: ComparisonImages,
    out: Path,
    on_progress: StageProgress,
    *,
    source: Path,
    seconds: float = SECONDS,
) -> ExportRecord:
    """Make a form, compare it with the package, and write the fastest that agrees.

    Args:
        reference: of the version.
        form: which form.
        images: real images to compare on.
        out: the folder to write; it does not exist yet, and does not if the form is refused.
        on_progress: called as images are predicted.
        source: holds `model.onnx`, `model.json` and `model.safetensors` of the version.
        seconds: that latencies are measured for each batch size.
    """
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(prefix=".patchline-export-", dir=out.parent) as scratch:
        package = PackagedModel(source / ONNX_FILE, source / DESCRIPTION_FILE)
        inputs = FormInputs(
            package_folder=source,
            package=package,
            name=reference.name,
            version=reference.version,
            calibration_NHWC=images.calibration_NHWC,
            calibration_origin=images.calibration_origin,
            scratch=Path(scratch),
        )
        expected_NK = _answered(package.probabilities, images, "Predicting (package)", on_progress)
        tried, passed = _tried(inputs, form, images, expected_NK, on_progress, seconds)
        chosen = max(passed, key=lambda each: each[1].speedup, default=None)
        record = _record(reference, form, images, inputs, tried, chosen)
        if chosen is not None:
            _write(chosen[0], record, images, out)
    return record


def _rounds(form: Form) -> list[Round]:
    """Return how a form can be made: later rounds are for processors that fail the first."""
    if form == "onnx":
        return [onnx_forms.float32_candidates]
    if form == "openvino":
        return [openvino_form.openvino_candidates]
    if form == "torch":
        return [torch_form.torch_candidates]
    if form == "container":
        return [container_form.container_candidates]
    in_eight, in_seven = (
        lambda inputs: onnx_forms.int8_candidates(inputs, reduce_range=False),
        lambda inputs: onnx_forms.int8_candidates(inputs, reduce_range=True),
    )
    return [in_eight, in_seven] if this_processor().has_int8_products else [in_seven]


def _tried(
    inputs: FormInputs,
    form: Form,
    images: ComparisonImages,
    expected_NK: Array,
    on_progress: StageProgress,
    seconds: float,
) -> tuple[list[TriedForm], list[tuple[ExportCandidate, TriedForm]]]:
    """Return what was measured, and the candidates of the first round with any that passes."""
    tried: list[TriedForm] = []
    single = inputs.package.with_threads(_THREADS).probabilities
    for candidates in _rounds(form):
        passed = []
        for candidate in candidates(inputs):
            stage = f"Predicting ({candidate.name})"
            given_NK = _answered(candidate.open(0), images, stage, on_progress)
            agreement = compared(
                expected_NK,
                given_NK,
                images.labels_N,
                candidate.bounds,
                inputs.package.thresholds_K,
            )
            measured = _measured(candidate, agreement, single, images, seconds)
            tried.append(measured)
            if agreement.passed:
                candidate.check(images.images_NHWC, expected_NK)
                passed.append((candidate, measured))
        if passed:
            return tried, passed
    return tried, []


def _measured(
    candidate: ExportCandidate,
    agreement: Agreement,
    package: Answers,
    images: ComparisonImages,
    seconds: float,
) -> TriedForm:
    latency = (
        measured_latency(package, candidate.open(_THREADS), images.images_NHWC[:32], seconds)
        if agreement.passed and candidate.is_timed
        else ()
    )
    return TriedForm(
        name=candidate.name,
        details=dict(candidate.details),
        agreement=agreement,
        bytes=candidate.bytes,
        latency=latency,
    )


def _answered(
    answers: Answers, images: ComparisonImages, stage: str, on_progress: StageProgress
) -> Array:
    """Return probabilities of all images, in batches of several sizes as a server meets them."""
    pixels_NHWC = images.images_NHWC
    size = min(_BATCH, max(1, _PIXELS // (pixels_NHWC.shape[1] * pixels_NHWC.shape[2])))
    start, sizes, parts = 0, iter(_FIRST_BATCHES), []
    while start < len(pixels_NHWC):
        stop = min(len(pixels_NHWC), start + next(sizes, size))
        parts.append(answers(pixels_NHWC[start:stop]))
        on_progress(stage, stop, len(pixels_NHWC))
        start = stop
    return np.concatenate(parts)


def _record(
    reference: ModelReference,
    form: Form,
    images: ComparisonImages,
    inputs: FormInputs,
    tried: list[TriedForm],
    chosen: tuple[ExportCandidate, TriedForm] | None,
) -> ExportRecord:
    processor = this_processor()
    stored = 0
    if chosen is not None and chosen[0].is_bound_to_processor:
        stored = min(processor_check.IMAGES, len(images.images_NHWC))
    bounds = tried[-1].agreement.bounds if chosen is None else chosen[0].bounds
    return ExportRecord(
        model=reference.name,
        version=reference.version,
        form=form,
        compared_on=images.origin,
        package_bytes=(inputs.package_folder / ONNX_FILE).stat().st_size,
        allowed_difference=bounds.largest,
        processor=ProcessorRecord(name=processor.name, instructions=processor.instructions),
        threads=_THREADS,
        libraries={
            name: metadata.version(name)
            for name in (chosen[0].libraries if chosen is not None else ())
        },
        chosen=None if chosen is None else chosen[1],
        tried=tuple(tried),
        stored_images=stored,
    )


def _write(
    candidate: ExportCandidate, record: ExportRecord, images: ComparisonImages, out: Path
) -> None:
    """Complete the folder of the candidate, and move it to its place."""
    record.save(candidate.folder)
    if record.stored_images:
        processor_check.write_check(
            candidate.folder,
            candidate.open(_THREADS),
            images.images_NHWC[: record.stored_images],
        )
    write_readme(candidate.folder, record)
    if (candidate.folder / ONNX_FILE).is_file():
        names = sorted(each.name for each in candidate.folder.iterdir() if each.is_file())
        write_digests(candidate.folder, names)
    if out.is_dir():
        shutil.rmtree(out)  # empty, as the caller has checked
    candidate.folder.replace(out)
