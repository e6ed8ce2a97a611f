"""The Open Inference Protocol v2 over REST, as the clients of KServe and Triton speak it."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus
from importlib import metadata
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.interfaces import tensors
from patchline.pipeline.registry.serving.interfaces.answering import server_of
from patchline.pipeline.registry.serving.interfaces.given_images import JSON, TENSORS, check_names
from patchline.pipeline.registry.serving.interfaces.predict_api import shown
from patchline.pipeline.registry.serving.interfaces.status_api import thresholds_of
from patchline.pipeline.registry.serving.interfaces.tensors import InferenceRequest, Tensor
from patchline.pipeline.registry.serving.model_host import Served
from patchline.pipeline.registry.serving.request_options import Options
from patchline.pipeline.web.json_bodies import json_response
from patchline.pipeline.web.refusal import bad_request

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
    is_ready = server_of(request).host.is_ready
    status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return json_response({"ready": is_ready}, status=status)


@router.get(f"{_MODEL}/ready")
@router.get(f"{_VERSION}/ready")
async def model_ready(request: Request, name: str, version: str | None = None) -> Response:
    """Tell whether the model, or this version of it, answers."""
    host = server_of(request).host
    served = host.check_name(name, version)
    status = HTTPStatus.OK if host.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return json_response({"name": name, "ready": host.is_ready}, served.version, status=status)


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
        "inputs": [{"name": tensors.INPUT, "datatype": "BYTES", "shape": [-1]}],
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
    length = request.headers.get(tensors.LENGTH_HEADER)
    kind = JSON if length is None else TENSORS
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: tensors.inference_request(body, length), kind
        )
        served = server.host.check_name(name, version)
        chosen = _chosen_outputs(given, _outputs_of(served.package))
        most = max(given.options.top_k, len(served.package.classes))
        all_classes = replace(given.options, top_k=most)
        answered = await server.host.answers(given.images, all_classes, request.scope)
    if all(answer["error"] is not None for answer in answered.answers):
        raise bad_request(f"Image 0 cannot be read: {answered.answers[0]['error']}.")
    outputs = [
        (_tensor(output, answered.answers, served, given.options), is_binary)
        for output, is_binary in chosen
    ]
    head: dict[str, Any] = {"model_name": name, "model_version": answered.version}
    if given.id is not None:
        head["id"] = given.id
    body, head_length = tensors.written(head, outputs)
    headers = {"cache-control": "no-store", "patchline-model-version": answered.version}
    if not any(is_binary for _, is_binary in chosen):
        return Response(body, headers=headers, media_type="application/json")
    headers[tensors.LENGTH_HEADER] = str(head_length)
    return Response(body, headers=headers, media_type="application/octet-stream")


def _outputs_of(package: PackagedModel) -> tuple[str, ...]:
    return _OUTPUTS_OF_SETS if package.is_multi_label else _OUTPUTS


def _chosen_outputs(given: InferenceRequest, names: tuple[str, ...]) -> list[tuple[str, bool]]:
    if given.outputs is None:
        return [(name, given.all_binary) for name in names]
    for output in given.outputs:
        if output.name not in names:
            raise bad_request(
                f"The output {output.name!r} is unknown. The outputs are {', '.join(names)}."
            )
    return [(output.name, output.is_binary) for output in given.outputs]


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
                **shown(answer, with_map=options.with_map),
                "version": served.version,
                "error": answer["error"],
            },
            ensure_ascii=False,
        )
        for answer in cut
    ]
    return Tensor(name, (number,), texts)
