"""The package's network alone, and in int8: `model.onnx` with `model.json`.

A folder with these two files is what `PackagedModel` opens, so an int8 model serves as a package
does.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE, REFERENCE_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.plugins.tools.export.comparison import (
    EXACT,
    REDUCED,
    Answers,
    ExportCandidate,
    FormInputs,
)

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
_QUANTIZED = ("MatMul", "Gemm")
"""Operators with weights of a Transformer; convolutions of patches stay in float32."""
_CALIBRATION_BATCH = 8


def float32_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the package's own network."""
    folder = _new(inputs, "onnx")
    shutil.copyfile(inputs.package_folder / ONNX_FILE, folder / ONNX_FILE)
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
    folder = _new(inputs, f"dynamic-{reduce_range}")
    _quantize_dynamic(inputs, folder / ONNX_FILE, reduce_range=reduce_range)
    yield _candidate(folder, f"int8, dynamic, {bits}", {**details, "method": "dynamic"})
    if len(inputs.calibration_NHWC):
        folder = _new(inputs, f"static-{reduce_range}")
        _quantize_static(inputs, folder / ONNX_FILE, reduce_range=reduce_range)
        static = {**details, "method": "static", "calibration": inputs.calibration_origin}
        yield _candidate(folder, f"int8, static, {bits}", static)


def _new(inputs: FormInputs, name: str) -> Path:
    folder = inputs.scratch / name
    folder.mkdir()
    for copied in (DESCRIPTION_FILE, REFERENCE_FILE):
        if (inputs.package_folder / copied).is_file():
            shutil.copyfile(inputs.package_folder / copied, folder / copied)
    return folder


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
            _CalibrationBatches(inputs.calibration_NHWC),
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
