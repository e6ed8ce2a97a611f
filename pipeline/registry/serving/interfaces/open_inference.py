"""The Open Inference Protocol v2 over REST, as the clients of KServe and Triton speak it.

The protocol: https://github.com/kserve/open-inference-protocol (REST); the extension for tensors:
"binary tensor data" of the Triton Inference Server. With it, a body is a JSON object followed by
the raw tensors, and the header `Inference-Header-Content-Length` tells where the JSON ends. The
elements of a BYTES tensor are each preceded by their length, four bytes, little-endian.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.packaging.packaged_model import PackagedModel, images_of
from patchline.pipeline.registry.serving.engine import Options
from patchline.pipeline.registry.serving.interfaces.answering import (
    JSON,
    OPTIONS,
    TENSORS,
    check_names,
    check_number,
    decode_base64,
    format_value,
    json_object,
    options_of,
    server_of,
)
from patchline.pipeline.registry.serving.interfaces.patchline_api import (
    format_answer,
    thresholds_of,
)
from patchline.pipeline.registry.serving.model_host import Served
from patchline.pipeline.web.request_body import bad_request, json_bytes, json_response

LENGTH_HEADER = "inference-header-content-length"
INPUT = "image"
_LENGTH = struct.Struct("<I")
_MOST_AXES, _LONGEST_AXIS = 4, 1 << 32
_SHOWN = 60
_LONGEST_ID = 1000
_MOST_HEAD_BYTES = 1 << 20
"""Of the JSON before binary tensors, which holds no data."""
_Image = bytes | np.ndarray[Any, Any]


@dataclass(frozen=True)
class InferenceRequest:
    """A request for inference."""

    id: str | None
    images: list[_Image]
    options: Options
    outputs: dict[str, bool] | None
    """Names of the outputs that are asked for, and whether each is binary; None for all outputs."""
    all_binary: bool
    """Whether the outputs are binary if the request names none."""


@dataclass(frozen=True)
class Tensor:
    """An output: float32 numbers, or texts."""

    name: str
    shape: tuple[int, ...]
    values: np.ndarray[Any, np.dtype[np.float32]] | Sequence[str]

    @property
    def datatype(self) -> str:
        """The protocol's name of its type."""
        return "FP32" if isinstance(self.values, np.ndarray) else "BYTES"


def inference_request(body: bytes, header_length: str | None) -> InferenceRequest:
    """Read a request.

    Args:
        body: the body of the request.
        header_length: the value of the header of the binary extension; None without it.

    Raises:
        Refusal: if it does not keep to the protocol, or holds no images.
    """
    head, raw = _split_body(body, header_length)
    content = json_object(head)
    parameters = _object(content, "parameters")
    all_binary = parameters.get("binary_data_output") is True
    return InferenceRequest(
        id=_id(content.get("id")),
        images=_images(_input(content), raw),
        options=options_of({k: parameters[k] for k in OPTIONS if k in parameters}),
        outputs=_read_requested_outputs(content, usual=all_binary),
        all_binary=all_binary,
    )


def encode_answer(
    answer: dict[str, Any], tensors: Sequence[tuple[Tensor, bool]]
) -> tuple[bytes, int]:
    """Return the body of an answer, and the length of the JSON in it.

    Args:
        answer: the keys beside `outputs`.
        tensors: each output, and whether it is binary.
    """
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for tensor, is_binary in tensors:
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if is_binary:
            raw.append(_encode_tensor(tensor))
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        elif isinstance(tensor.values, np.ndarray):
            output["data"] = tensor.values.ravel().tolist()
        else:
            output["data"] = list(tensor.values)
        outputs.append(output)
    head = json_bytes({**answer, "outputs": outputs})
    return b"".join([head, *raw]), len(head)


def _encode_tensor(tensor: Tensor) -> bytes:
    if isinstance(tensor.values, np.ndarray):
        return tensor.values.astype("<f4").tobytes()
    texts = [text.encode() for text in tensor.values]
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))


def _split_body(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) < _SHOWN
    length, most = int(header_length) if is_number else -1, min(len(body), _MOST_HEAD_BYTES)
    if not 0 < length <= most:
        raise bad_request(
            f"Inference-Header-Content-Length is {header_length[:_SHOWN]!r}, but must be a number "
            f"from 1 to {most}: a length within the body of {len(body)} bytes, and at most "
            f"{_MOST_HEAD_BYTES}."
        )
    return body[:length], memoryview(body)[length:]


def _id(given: object) -> str | None:
    if given is None:
        return None
    is_text = isinstance(given, str | int | float)
    if not is_text or len(str(given)) > _LONGEST_ID:
        raise bad_request(
            f"id is {format_value(given)}, but must be a text of at most {_LONGEST_ID} characters."
        )
    return str(given)


def _input(content: dict[str, Any]) -> dict[str, Any]:
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise bad_request("The request has no list of inputs. Send the input 'image'.")
    if len(inputs) != 1:
        raise bad_request(f"The request has {len(inputs)} inputs, but the model has one: 'image'.")
    [given] = inputs
    name = given.get("name")
    if name != INPUT:
        raise bad_request(f"The input {format_value(name)} is unknown. The input is 'image'.")
    return dict(given)


def _images(given: dict[str, Any], raw: memoryview) -> list[_Image]:
    shape, datatype = _shape(given), given.get("datatype")
    size = _object(given, "parameters").get("binary_data_size")
    if size is not None and (not isinstance(size, int) or size != len(raw)):
        raise bad_request(
            f"binary_data_size is {format_value(size)}, but {len(raw)} bytes follow the JSON."
        )
    if size is None and len(raw):
        raise bad_request("Bytes follow the JSON, but no input has a binary_data_size.")
    if datatype == "BYTES":
        number = shape[0]
        check_number(number)
        if math.prod(shape) != number:
            raise bad_request(f"The shape of BYTES is {shape}. Send (N) or (N, 1) files.")
        elements = _elements(raw) if size is not None else _texts(given, shape)
        images: list[_Image] = list(itertools.islice(elements, number + 1))
        if len(images) != number:
            more = "more" if len(images) > number else f"the {len(images)}"
            raise bad_request(f"The shape {shape} does not fit {more} elements.")
        return images
    if datatype == "UINT8":
        if len(shape) in (2, 4):
            check_number(shape[0])
        return images_of(_numbers(given, raw if size is not None else None, shape))
    raise bad_request(
        f"The datatype {format_value(datatype)} is not accepted. Send BYTES (encoded images) or "
        "UINT8 (pixels)."
    )


def _shape(given: dict[str, Any]) -> tuple[int, ...]:
    shape = given.get("shape")
    is_short = isinstance(shape, list) and 1 <= len(shape) <= _MOST_AXES
    if not is_short or not all(type(n) is int and 0 < n < _LONGEST_AXIS for n in shape or ()):
        axes = ", ".join(map(format_value, shape or ())) if is_short else format_value(shape)
        raise bad_request(
            f"The shape ({axes}) is no list of one to four numbers from 1. Send the shape of the "
            "tensor."
        )
    return tuple(shape or ())


def _elements(raw: memoryview) -> Iterator[bytes]:
    """Yield the elements of a binary BYTES tensor."""
    position = 0
    while position < len(raw):
        start = position + _LENGTH.size
        if start > len(raw):
            raise bad_request("The binary tensor ends within a length. Send all of it.")
        [length] = _LENGTH.unpack(raw[position:start])
        position = start + length
        if position > len(raw):
            raise bad_request("The binary tensor ends within an element. Send all of it.")
        yield bytes(raw[start:position])


def _texts(given: dict[str, Any], shape: tuple[int, ...]) -> Iterator[bytes]:
    """Yield the elements of a BYTES tensor in JSON, which are base64."""
    elements = itertools.chain.from_iterable(_rows(given.get("data"), shape))
    for position, text in enumerate(elements):
        try:
            yield decode_base64(text)
        except ValueError as error:
            raise bad_request(
                f"Element {position} of 'image': {error}. Send the bytes of the file in base64, or "
                "binary tensors."
            ) from None


def _numbers(
    given: dict[str, Any], raw: memoryview | None, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    if raw is None:
        flat = b"".join(map(_whole_numbers, _rows(given.get("data"), shape)))
        return np.frombuffer(flat, np.uint8).reshape(shape)
    if len(raw) != math.prod(shape):
        raise bad_request(f"The shape {shape} does not fit the {len(raw)} values.")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _rows(data: object, shape: tuple[int, ...]) -> Iterator[list[Any]]:
    """Yield the innermost lists of data that are nested as the shape says, or one flat list."""
    is_nested = isinstance(data, list) and data and isinstance(data[0], list)
    pending = [(data, shape if is_nested else (math.prod(shape),))]
    while pending:
        values, axes = pending.pop()
        if not isinstance(values, list):
            raise bad_request("The data of 'image' are no list. Send a list of its values.")
        if len(values) != axes[0]:
            raise bad_request(
                f"The data of 'image' have a list of {len(values)} where the shape {shape} has "
                f"{axes[0]}. Nest lists as the shape says, or send one flat list."
            )
        if len(axes) > 1:
            pending += [(value, axes[1:]) for value in reversed(values)]
        else:
            yield values


def _whole_numbers(values: list[Any]) -> bytes:
    """Return numbers as bytes; numpy would pad texts to the longest."""
    if set(map(type, values)) != {int}:
        raise bad_request("The data of 'image' are no whole numbers. Send 0 to 255.")
    try:
        return bytes(values)
    except ValueError:
        raise bad_request(
            "The data of 'image' are beyond 0 to 255. Send values of 8 bits."
        ) from None


def _read_requested_outputs(content: dict[str, Any], *, usual: bool) -> dict[str, bool] | None:
    outputs = content.get("outputs")
    if not outputs:
        return None
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise bad_request("outputs is no list of objects. Name the outputs that you need.")
    names = [format_value(each.get("name")) for each in outputs]
    if len(set(names)) < len(names):
        raise bad_request("outputs has an output twice, or several without a name. Name each once.")
    return {
        name[:_SHOWN] if isinstance(name := each.get("name"), str) else "": (
            _object(each, "parameters").get("binary_data", usual) is True
        )
        for each in outputs
    }


def _object(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{key} is no object. Send an object, or leave it out.")
    return dict(value)


router = APIRouter(prefix="/v2", tags=["open inference protocol"])

_OUTPUTS = ("label", "probability", "probabilities", "answer")
_OUTPUTS_OF_SETS = ("labels", "probabilities", "answer")
"""Of a multi-label model: an image may have no label, for which the protocol has no value."""
_MODEL, _VERSION = "/models/{name}", "/models/{name}/versions/{version}"


@router.get("")
async def server_metadata() -> Response:
    """Name the server and its extensions."""
    return json_response(
        {
            "name": "patchline",
            "version": metadata.version("patchline"),
            "extensions": ["binary_tensor_data"],
        }
    )


@router.get("/health/live")
async def live() -> Response:
    """Tell that the process runs."""
    return json_response({"live": True})


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Tell whether requests are answered."""
    host = server_of(request).host
    return json_response({"ready": host.is_ready}, status=host.ready_status)


@router.get(f"{_MODEL}/ready")
@router.get(f"{_VERSION}/ready")
async def model_ready(request: Request, name: str, version: str | None = None) -> Response:
    """Tell whether the model, or this version of it, answers."""
    host = server_of(request).host
    content = {"name": name, "ready": host.is_ready}
    served = host.check_name(name, version)
    return json_response(content, served.version, status=host.ready_status)


@router.get(_MODEL)
@router.get(_VERSION)
async def model_metadata(request: Request, name: str, version: str | None = None) -> Response:
    """Describe the inputs, the outputs and the classes of the model."""
    served = server_of(request).host.check_name(name, version)
    package = served.package
    classes = len(package.classes)
    shapes: dict[str, dict[str, Any]] = {
        "label": {"datatype": "BYTES", "shape": [-1]},
        "labels": {"datatype": "BYTES", "shape": [-1]},
        "probability": {"datatype": "FP32", "shape": [-1]},
        "probabilities": {"datatype": "FP32", "shape": [-1, classes]},
        "answer": {"datatype": "BYTES", "shape": [-1]},
    }
    thresholds = thresholds_of(package)
    content = {
        "name": name,
        "versions": [served.version],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": name, **shapes[name]} for name in _outputs_of(package)],
        "classes": package.classes,
        **({} if thresholds is None else {"thresholds": thresholds}),
        "parameters": {
            "image_also_as": "UINT8",
            "image_shapes": "(H, W, C), (N, H, W, C), (bytes), (N, bytes)",
            "image_channels": "RGB or grey, last",
        },
    }
    return json_response(content, served.version)


@router.post(f"{_MODEL}/infer")
@router.post(f"{_VERSION}/infer")
async def infer(request: Request, name: str, version: str | None = None) -> Response:
    """Predict the classes of the images in the input tensor."""
    server = server_of(request)
    server.host.check_name(name, version)
    check_names(request.query_params, ())
    length = request.headers.get(LENGTH_HEADER)
    kind = JSON if length is None else TENSORS
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: inference_request(body, length), kind
        )
        served = server.host.check_name(name, version)
        chosen = _choose_outputs(given, _outputs_of(served.package))
        most = max(given.options.top_k, len(served.package.classes))
        all_classes = replace(given.options, top_k=most)
        answered = await server.host.answers(given.images, all_classes, request.scope)
    if all(answer["error"] is not None for answer in answered.answers):
        raise bad_request(f"Image 0 cannot be read: {answered.answers[0]['error']}.")
    outputs = [
        (_tensor(output, answered.answers, served, given.options), is_binary)
        for output, is_binary in chosen.items()
    ]
    head: dict[str, Any] = {"model_name": name, "model_version": answered.version}
    if given.id is not None:
        head["id"] = given.id
    body, head_length = encode_answer(head, outputs)
    headers = {"cache-control": "no-store", "patchline-model-version": answered.version}
    if not any(chosen.values()):
        return Response(body, headers=headers, media_type="application/json")
    headers[LENGTH_HEADER] = str(head_length)
    return Response(body, headers=headers, media_type="application/octet-stream")


def _outputs_of(package: PackagedModel) -> tuple[str, ...]:
    return _OUTPUTS_OF_SETS if package.is_multi_label else _OUTPUTS


def _choose_outputs(given: InferenceRequest, names: tuple[str, ...]) -> dict[str, bool]:
    if given.outputs is None:
        return dict.fromkeys(names, given.all_binary)
    for name in given.outputs:
        if name not in names:
            raise bad_request(
                f"The output {name!r} is unknown. The outputs are {', '.join(names)}."
            )
    return given.outputs


def _tensor(name: str, answers: list[dict[str, Any]], served: Served, options: Options) -> Tensor:
    number = len(answers)
    if name == "label":
        return Tensor(name, (number,), [answer["label"] or "" for answer in answers])
    if name == "labels":
        names = [
            [each["label"] for each in answer["labels"]] if answer["error"] is None else None
            for answer in answers
        ]
        return Tensor(name, (number,), [json.dumps(each, ensure_ascii=False) for each in names])
    if name == "probability":
        values = np.array([answer["probability"] or 0 for answer in answers], np.float32)
        return Tensor(name, (number,), values)
    if name == "probabilities":
        classes = served.package.classes
        rows = np.zeros((number, len(classes)), np.float32)
        positions = {label: position for position, label in enumerate(classes)}
        for row, answer in zip(rows, answers, strict=True):
            for each in answer["top_k"]:
                row[positions[each["label"]]] = each["probability"]
        return Tensor(name, rows.shape, rows)
    cut = [{**answer, "top_k": answer["top_k"][: options.top_k]} for answer in answers]
    texts = [
        json.dumps(
            {
                **format_answer(answer, with_map=options.with_map),
                "version": served.version,
                "error": answer["error"],
            },
            ensure_ascii=False,
        )
        for answer in cut
    ]
    return Tensor(name, (number,), texts)
