"""The package's network for OpenVINO, in float32 or bfloat16, whichever is faster here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.plugins.tools.export.comparison import (
    EXACT,
    REDUCED,
    Answers,
    ExportCandidate,
    FormInputs,
)

Array = np.ndarray[Any, Any]
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
        folder = inputs.scratch / f"openvino-{precision}"
        folder.mkdir()
        (folder / DESCRIPTION_FILE).write_bytes(
            (inputs.package_folder / DESCRIPTION_FILE).read_bytes()
        )
        network = core.read_model(str(inputs.package_folder / ONNX_FILE))
        _openvino().save_model(network, str(folder / MODEL_FILE), compress_to_fp16=False)
        yield ExportCandidate(
            name=f"openvino, {precision}",
            folder=folder,
            model_files=(MODEL_FILE, WEIGHTS_FILE),
            open=partial(_compiled, core, folder / MODEL_FILE, precision),
            bounds=EXACT if precision == "f32" else REDUCED,
            details={"precision": precision},
            libraries=("openvino",),
            is_bound_to_processor=precision != "f32",
        )


def _computes_bfloat16(core: Any) -> bool:
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _compiled(core: Any, file: Path, precision: str, threads: int) -> Answers:
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
