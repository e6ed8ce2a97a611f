"""Write another form of a packaged model, if it agrees with the package on real images.

The forms are the program of torch, that of OpenVINO, and the package's network alone or in int8:
`model.onnx` with `model.json`. A folder with these two files is what `PackagedModel` opens, so an
int8 model serves as a package does.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from patchline.pipeline.errors import ConfigError, PackagingError, first_line
from patchline.pipeline.packaging import processor_check
from patchline.pipeline.packaging.package_digests import write_digests
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE, REFERENCE_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.workers.host.processors import this_processor
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugins.tools.export import container_form
from patchline.plugins.tools.export.comparison import (
    EXACT,
    REDUCED,
    SECONDS,
    Agreement,
    Answers,
    ComparisonImages,
    ExportCandidate,
    FormInputs,
    StageProgress,
    compare_forms,
    measure_latency,
)
from patchline.plugins.tools.export.export_pages import (
    ExportRecord,
    ProcessorRecord,
    TriedForm,
    write_readme,
)

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
PROGRAM_FILE = "model.pt2"


def torch_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the program: uint8 images (B, H, W, C) in, calibrated probabilities (B, K) out.

    Raises:
        PackagingError: if torch cannot export the model.
        PluginError: if a plugin of the model is not installed.
    """
    import torch

    from patchline.pipeline.models.model_files import load_model
    from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel

    model, description = load_model(inputs.package_folder)
    whole = ProbabilityModel.of(model, description).eval()
    image = description.image
    example = torch.zeros((2, image.height, image.width, image.channels), dtype=torch.uint8)
    folder = inputs.new_folder("torch", DESCRIPTION_FILE)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            batch = torch.export.Dim("batch")
            program = torch.export.export(whole, (example,), dynamic_shapes=({0: batch},))
            program.example_inputs = None  # would be stored as a pickle
            torch.export.save(program, folder / PROGRAM_FILE)
        except Exception as error:  # torch documents no class for what it cannot export
            raise PackagingError(
                f"The model cannot be exported with torch.export: {first_line(error)}. Choose "
                "another form with --to."
            ) from error
    _check_without_pickle(folder / PROGRAM_FILE)
    yield ExportCandidate(
        name="torch",
        folder=folder,
        model_files=(PROGRAM_FILE,),
        open=partial(_load, folder / PROGRAM_FILE),
        bounds=EXACT,
        details={"precision": "float32"},
        libraries=("torch",),
    )


def _check_without_pickle(file: Path) -> None:
    """Raise an error if the archive holds a pickle."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".pt") and content:
                raise PackagingError(
                    f"torch stores {name} of the exported program as a pickle, which Patchline "
                    "does not write. Choose another form with --to."
                )


def _load(file: Path, threads: int) -> Answers:
    """Return a function that answers with the program that was written."""
    import torch

    program = torch.export.load(file).module()
    before = torch.get_num_threads()

    def answers(images_NHWC: Array) -> Array:
        torch.set_num_threads(threads or before)
        try:
            with torch.inference_mode():
                images = torch.from_numpy(np.ascontiguousarray(images_NHWC))
                outputs: Array = program(images).numpy()
        finally:
            torch.set_num_threads(before)
        return outputs

    return answers


MODEL_FILE, WEIGHTS_FILE = "model.xml", "model.bin"
_TELEMETRY = "openvino_telemetry"


def openvino_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the network in float32, and in bfloat16 if this processor computes with it.

    Raises:
        ConfigError: if OpenVINO is not installed.
    """
    core = _openvino().Core()
    for precision in ("f32", "bf16"):
        if precision == "bf16" and not _computes_bfloat16(core):
            continue
        folder = inputs.new_folder(f"openvino-{precision}", DESCRIPTION_FILE)
        network = core.read_model(str(inputs.package_folder / ONNX_FILE))
        _openvino().save_model(network, str(folder / MODEL_FILE), compress_to_fp16=False)
        yield ExportCandidate(
            name=f"openvino, {precision}",
            folder=folder,
            model_files=(MODEL_FILE, WEIGHTS_FILE),
            open=partial(_compile, core, folder / MODEL_FILE, precision),
            bounds=EXACT if precision == "f32" else REDUCED,
            details={"precision": precision},
            libraries=("openvino",),
            is_bound_to_processor=precision != "f32",
        )


def _computes_bfloat16(core: Any) -> bool:
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _compile(core: Any, file: Path, precision: str, threads: int) -> Answers:
    """Return a function that answers with the model that was written."""
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = core.compile_model(str(file), "CPU", settings)
    output = compiled.output("probabilities")

    def answers(images_NHWC: Array) -> Array:
        return np.array(compiled([np.ascontiguousarray(images_NHWC)])[output])

    return answers


def _openvino() -> Any:
    """Import OpenVINO, which sends no telemetry.

    Raises:
        ConfigError: if it is not installed.
    """
    if importlib.util.find_spec("openvino") is None:
        raise ConfigError(
            "The form openvino needs the package openvino, which is not installed. Install it with "
            "`pip install 'patchline[openvino]'`, or choose another form with --to."
        )
    with _without_telemetry():
        import openvino
    return openvino


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Let OpenVINO find no telemetry while it is imported.

    It reports its import to a host of its maker, and writes an identifier into the home folder. If
    the package for that is missing, it does neither.
    """
    before = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # an import of it fails
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(_TELEMETRY, None)
        else:
            sys.modules[_TELEMETRY] = before


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
        reference: the version to export.
        form: the form to make, such as `int8`.
        images: real images to compare on.
        out: the folder to write; it does not exist yet, and does not if the form is refused.
        on_progress: called as images are predicted.
        source: the folder that holds `model.onnx`, `model.json` and `model.safetensors` of the
            version.
        seconds: how long latencies are measured for each batch size, in seconds.
    """
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(prefix=".patchline-export-", dir=out.parent) as scratch:
        package = PackagedModel(source / ONNX_FILE, source / DESCRIPTION_FILE)
        inputs = FormInputs(
            package_folder=source,
            package=package,
            reference=reference,
            images=images,
            scratch=Path(scratch),
        )
        expected_NK = _answer_in_batches(
            package.probabilities, images, "Predicting (package)", on_progress
        )
        tried, passed = _try_candidates(inputs, form, expected_NK, on_progress, seconds)
        chosen = max(passed, key=lambda each: each[1].speedup, default=None)
        record = _record(inputs, form, tried, chosen)
        if chosen is not None:
            _write(chosen[0], record, images, out)
    return record


def _rounds(form: Form) -> list[Round]:
    """Return how a form can be made: later rounds are for processors that fail the first."""
    if form == "onnx":
        return [float32_candidates]
    if form == "openvino":
        return [openvino_candidates]
    if form == "torch":
        return [torch_candidates]
    if form == "container":
        return [container_form.container_candidates]
    in_eight, in_seven = (
        lambda inputs: int8_candidates(inputs, reduce_range=False),
        lambda inputs: int8_candidates(inputs, reduce_range=True),
    )
    return [in_eight, in_seven] if this_processor().has_int8_products else [in_seven]


def _try_candidates(
    inputs: FormInputs,
    form: Form,
    expected_NK: Array,
    on_progress: StageProgress,
    seconds: float,
) -> tuple[list[TriedForm], list[tuple[ExportCandidate, TriedForm]]]:
    """Return what was measured, and the candidates of the first round with any that passes."""
    tried: list[TriedForm] = []
    images = inputs.images
    single = inputs.package.with_threads(_THREADS).probabilities
    for candidates in _rounds(form):
        passed = []
        for candidate in candidates(inputs):
            stage = f"Predicting ({candidate.name})"
            given_NK = _answer_in_batches(candidate.open(0), images, stage, on_progress)
            agreement = compare_forms(
                expected_NK,
                given_NK,
                images.labels_N,
                candidate.bounds,
                inputs.package.thresholds_K,
            )
            measured = _measure(candidate, agreement, single, images, seconds)
            tried.append(measured)
            if agreement.passed:
                candidate.check(images.images_NHWC, expected_NK)
                passed.append((candidate, measured))
        if passed:
            return tried, passed
    return tried, []


def _measure(
    candidate: ExportCandidate,
    agreement: Agreement,
    package: Answers,
    images: ComparisonImages,
    seconds: float,
) -> TriedForm:
    latency = (
        measure_latency(package, candidate.open(_THREADS), images.images_NHWC[:32], seconds)
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


def _answer_in_batches(
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
    inputs: FormInputs,
    form: Form,
    tried: list[TriedForm],
    chosen: tuple[ExportCandidate, TriedForm] | None,
) -> ExportRecord:
    processor = this_processor()
    stored = 0
    if chosen is not None and chosen[0].is_bound_to_processor:
        stored = min(processor_check.IMAGES, len(inputs.images.images_NHWC))
    bounds = tried[-1].agreement.bounds if chosen is None else chosen[0].bounds
    return ExportRecord(
        model=inputs.reference.name,
        version=inputs.reference.version,
        form=form,
        compared_on=inputs.images.origin,
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


_QUANTIZED = ("MatMul", "Gemm")
"""Operators with weights of a Transformer; convolutions of patches stay in float32."""
_CALIBRATION_BATCH = 8
_BESIDE = DESCRIPTION_FILE, REFERENCE_FILE
"""Files of the package that stay beside its network."""


def float32_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the package's own network."""
    folder = inputs.new_folder("onnx", *_BESIDE, ONNX_FILE)
    yield _candidate(folder, "onnx", {"precision": "float32"}, is_exact=True)


def int8_candidates(inputs: FormInputs, *, reduce_range: bool) -> Iterator[ExportCandidate]:
    """Yield the network in int8, made in two ways.

    Dynamic: the range of each activation is taken from the batch at hand. Static: it is taken from
    calibration images once, so that no answer depends on the other images of a batch. Weights have
    one scale for each output channel.

    Args:
        inputs: what the network is made from.
        reduce_range: use 7 bits of each weight, so that int8 products cannot overflow where a
            processor adds two of them in 16 bits.
    """
    bits = "7-bit weights" if reduce_range else "8-bit weights"
    details = {"weight_bits": "7" if reduce_range else "8"}
    folder = inputs.new_folder(f"dynamic-{reduce_range}", *_BESIDE)
    _quantize_dynamic(inputs, folder / ONNX_FILE, reduce_range=reduce_range)
    yield _candidate(folder, f"int8, dynamic, {bits}", {**details, "method": "dynamic"})
    if len(inputs.images.calibration_NHWC):
        folder = inputs.new_folder(f"static-{reduce_range}", *_BESIDE)
        _quantize_static(inputs, folder / ONNX_FILE, reduce_range=reduce_range)
        static = {**details, "method": "static", "calibration": inputs.images.calibration_origin}
        yield _candidate(folder, f"int8, static, {bits}", static)


def _candidate(
    folder: Path, name: str, details: dict[str, str], *, is_exact: bool = False
) -> ExportCandidate:
    def opened(threads: int) -> Answers:
        model = PackagedModel(folder / ONNX_FILE, folder / DESCRIPTION_FILE, threads)
        return model.probabilities

    return ExportCandidate(
        name=name,
        folder=folder,
        model_files=(ONNX_FILE,),
        open=opened,
        bounds=EXACT if is_exact else REDUCED,
        details=details,
        is_bound_to_processor=not is_exact,
    )


def _network(inputs: FormInputs) -> onnx.ModelProto:
    """Return the package's network without inferred shapes, which quantization trips over."""
    import onnx

    network = onnx.load(str(inputs.package_folder / ONNX_FILE))
    del network.graph.value_info[:]
    _separate_weights(network)
    return network


def _separate_weights(network: onnx.ModelProto) -> None:
    """Give each quantized node weights of its own, such as a head that reads after each block.

    Quantization transposes the weights of each such node in place: shared ones, several times.
    """
    import onnx

    stored = {each.name: each for each in network.graph.initializer}
    taken = set[str]()
    for node in network.graph.node:
        if node.op_type not in _QUANTIZED:
            continue
        for position, name in enumerate(node.input):
            if name in stored and name in taken:
                own = onnx.TensorProto()
                own.CopyFrom(stored[name])
                own.name = node.input[position] = f"{name}.{node.name}"
                network.graph.initializer.append(own)
            taken.add(name)


def _quantize_dynamic(inputs: FormInputs, file: Path, *, reduce_range: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quietly():
        quantize_dynamic(
            _network(inputs),
            file,
            op_types_to_quantize=list(_QUANTIZED),
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    _check_written(file)


def _quantize_static(inputs: FormInputs, file: Path, *, reduce_range: bool) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with _quietly():
        quantize_static(
            _network(inputs),
            file,
            _CalibrationBatches(inputs.images.calibration_NHWC),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_QUANTIZED),
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    _check_written(file)


def _check_written(file: Path) -> None:
    if not file.is_file():
        raise PackagingError("onnxruntime wrote no quantized model. Update onnxruntime.")


class _CalibrationBatches:
    """Batches of calibration images, as onnxruntime reads them."""

    def __init__(self, images_NHWC: Array) -> None:
        self._batches = iter(
            images_NHWC[start : start + _CALIBRATION_BATCH]
            for start in range(0, len(images_NHWC), _CALIBRATION_BATCH)
        )

    def get_next(self) -> dict[str, Array] | None:
        """Return the next batch; None after the last one."""
        batch = next(self._batches, None)
        return None if batch is None else {"images": batch}


class _quietly:  # noqa: N801 - a context manager, used like a function
    """Keep onnxruntime's advice to preprocess the model off the terminal."""

    def __enter__(self) -> None:
        self._level = logging.getLogger().level
        logging.getLogger().setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().setLevel(self._level)
