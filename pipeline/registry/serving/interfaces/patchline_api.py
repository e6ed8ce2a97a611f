"""Patchline's own interface: predictions, health, metrics, and its description."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.engine import Options
from patchline.pipeline.registry.serving.interfaces.answering import (
    GivenImages,
    Server,
    read_given_images,
    server_of,
)
from patchline.pipeline.registry.serving.model_host import Answers, ModelHost
from patchline.pipeline.web.request_body import bad_request, json_response
from patchline.pipeline.web.server_metrics import CONTENT_TYPE

router = APIRouter(tags=["predict"])

_OWN_KEYS = ("label", "probability", "top_k", "error", "failed")


@router.post("/predict")
async def predict(request: Request) -> Response:
    """Predict the class of an image, or of several."""
    server = server_of(request)
    given, answered = await answer_images(request, lambda given: given.options)
    if given.is_list:
        content = {
            "answers": _answers_as_json(given, answered),
            "version": answered.version,
            "model": server.host.name,
        }
        return json_response(content, answered.version)
    return one_answer(server, given.options, answered)


async def answer_images(
    request: Request, options_of: Callable[[GivenImages], Options]
) -> tuple[GivenImages, Answers]:
    """Return the images of a request, and their answers.

    Args:
        request: a request with a raw body, a form, or base64 in JSON.
        options_of: returns the options to answer with, or refuses the images.
    """
    server = server_of(request)
    content_type = request.headers.get("content-type", "")
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: read_given_images(body, content_type, request.query_params)
        )
        options = options_of(given)
        return given, await server.host.answers(given.images, options, request.scope)


def one_answer(server: Server, options: Options, answered: Answers) -> Response:
    """Return the answer to the only image of a request, or why it cannot be read."""
    [answer] = answered.answers
    if answer["error"] is not None:
        content = {"error": f"The image cannot be read: {answer['error']}."}
        return json_response(
            {**content, "version": answered.version},
            answered.version,
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    single = {
        **format_answer(answer, with_map=options.with_map),
        "version": answered.version,
        "model": server.host.name,
    }
    return json_response(single, answered.version)


def _answers_as_json(given: GivenImages, answered: Answers) -> list[dict[str, Any]]:
    listed = []
    for name, answer in zip(given.names, answered.answers, strict=True):
        file = {} if name is None else {"file": name}
        listed.append(
            {
                **file,
                **format_answer(answer, with_map=given.options.with_map),
                "error": answer["error"],
            }
        )
    return listed


def format_answer(answer: dict[str, Any], *, with_map: bool) -> dict[str, Any]:
    """Return an answer of the package as `/predict` writes it.

    Args:
        answer: the package's answer for one image.
        with_map: whether the request asked where the model looked.
    """
    return {
        "label": answer["label"],
        "probability": answer["probability"],
        "top": answer["top_k"],
        "set": None,
        "coverage": None,
        "warnings": [],
        **({"map": None} if with_map else {}),
        **{key: value for key, value in answer.items() if key not in _OWN_KEYS},
    }


page_router = APIRouter(include_in_schema=False)


@page_router.post("/inside")
async def inside(request: Request) -> Response:
    """Predict the class of an image, and show the inside of the prediction."""
    given, answered = await answer_images(request, _with_inside)
    return one_answer(server_of(request), _with_inside(given), answered)


def _with_inside(given: GivenImages) -> Options:
    if given.is_list:
        raise bad_request("One image at a time can be looked into. Send one as the body.")
    return dataclasses.replace(given.options, with_inside=True)


status_router = APIRouter(tags=["status"])


@status_router.get("/healthz")
async def healthz() -> Response:
    """Tell that the process runs."""
    return json_response({"status": "ok"})


@status_router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Tell whether requests are answered."""
    host = server_of(request).host
    said = "ready" if host.is_ready else "not ready"
    return json_response({"status": said}, status=host.ready_status)


@status_router.get("/status")
async def status(request: Request) -> Response:
    """Tell which version answers, what the registry says, and how much waits."""
    host = server_of(request).host
    return json_response(describe_host(host))


@status_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics in the format of Prometheus."""
    host = server_of(request).host
    host.metrics.waiting.set(host.waiting)
    host.metrics.pending.set(host.pending)
    return Response(host.metrics.text(), headers={"content-type": CONTENT_TYPE})


def thresholds_of(package: PackagedModel) -> list[float] | None:
    """Return each label's threshold; None if an image has one label."""
    return None if package.thresholds_K is None else package.thresholds_K.tolist()


def describe_host(host: ModelHost) -> dict[str, Any]:
    """Return the state of a server."""
    served, registry, recorder = host.served, host.registry, host.recorder
    away = registry.away_since
    since = None if away is None else dt.datetime.fromtimestamp(away, dt.UTC)
    rejected = registry.rejected
    return {
        "model": host.name,
        "version": served.version,
        "alias": host.alias,
        "form": host.config.form,
        "ready": host.is_ready,
        "files": "verified" if served.package.is_verified else "unknown",
        "task": MULTI_LABEL if served.package.is_multi_label else SINGLE_LABEL,
        "classes": served.package.classes,
        "thresholds": thresholds_of(served.package),
        "image": {key: served.package.image[key] for key in ("channels", "height", "width")},
        "registry": {
            "answers": away is None,
            "away_since": None if since is None else since.isoformat(timespec="seconds"),
            "alias_missing": registry.alias_missing,
        },
        "rejected": None
        if rejected is None
        else dict(zip(("version", "reason"), rejected, strict=True)),
        "recording": None
        if recorder is None
        else {"problem": recorder.problem, "missed_images": recorder.missed},
        "pending_images": host.pending,
        "max_queue": host.config.max_queue,
        "max_request_mib": host.config.max_request_mib,
    }
