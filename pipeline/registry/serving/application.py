"""The application: every interface of the server, its pages, and its errors as one sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from patchline.pipeline.registry.serving.interfaces import (
    feedback_api,
    mlflow_api,
    open_inference,
    patchline_api,
)
from patchline.pipeline.registry.serving.interfaces.answering import Server, server_of
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.web.access_control import AccessControl, left_unread
from patchline.pipeline.web.request_body import Refusal, json_response

logger = logging.getLogger(__name__)

_TEXT = {"type": "string", "format": "byte"}
_BASE64 = {
    "anyOf": [_TEXT, {"type": "object", "properties": {"b64": _TEXT}, "required": ["b64"]}],
    "description": "The bytes of a file in base64, encoded once; also as a data: address.",
}
_BINARY = {"type": "string", "format": "binary"}
_RANKED: dict[str, Any] = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "probability": {"type": "number"}},
    "required": ["label", "probability"],
}
_TOP = {**_RANKED, "properties": {**_RANKED["properties"], "threshold": {"type": "number"}}}
_ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {
            "type": ["string", "null"],
            "description": "Null if a model with several labels for each image gives none.",
        },
        "probability": {"type": ["number", "null"]},
        "labels": {
            "type": "array",
            "items": _RANKED,
            "description": "Only of a model with several labels for each image: those at or above "
            "their thresholds, the most probable first.",
        },
        "top": {"type": "array", "items": _TOP},
        "set": {"type": ["array", "null"], "items": {"type": "string"}},
        "coverage": {"type": ["number", "null"]},
        "warnings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"kind": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "unchecked": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Kinds of warnings that the model has no limit for.",
        },
        "map": {
            "type": ["object", "null"],
            "description": "Where the model looked; with the option map.",
        },
        "version": {"type": "string"},
        "model": {"type": "string"},
    },
}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}
_OPTIONS = {
    "top_k": {"type": "integer", "minimum": 1},
    "map": {"type": "boolean"},
    "coverage": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
}
_PREDICT = {
    "image/*": {"schema": _BINARY},
    "application/octet-stream": {"schema": _BINARY},
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "array", "items": _BINARY}, **_OPTIONS},
        }
    },
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "image": _BASE64,
                "images": {"type": "array", "items": _BASE64},
                **_OPTIONS,
            },
        }
    },
}
_RECORDS = {
    "type": "object",
    "properties": {
        "dataframe_records": {
            "type": "array",
            "items": {"type": "object", "properties": {"image": _BASE64}},
        },
        "params": {"type": "object", "properties": _OPTIONS},
    },
}
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "enum": ["BYTES", "UINT8"]},
        "shape": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "BYTES: (N) files. UINT8: pixels (H, W, C) or (N, H, W, C), RGB in this "
            "order or grey, so C is 3 or 1; or encoded files, (bytes) or (N, bytes).",
        },
        "data": {"type": "array", "items": {}, "description": "Flat, or nested as the shape."},
    },
}
_INFER = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object"}},
        "parameters": {"type": "object", "properties": _OPTIONS},
    },
    "required": ["inputs"],
}
_BODIES: dict[str, dict[str, Any]] = {
    "/predict": _PREDICT,
    "/invocations": {"application/json": {"schema": _RECORDS}},
    "/v2/models/{name}/infer": {"application/json": {"schema": _INFER}},
    "/v2/models/{name}/versions/{version}/infer": {"application/json": {"schema": _INFER}},
}
_QUERY = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in _OPTIONS.items()
]
_ERRORS = {
    "400": "The request is malformed.",
    "401": "The token is missing or wrong.",
    "413": "The body is too large.",
    "415": "The content type is not accepted.",
    "422": "The image cannot be read.",
    "503": "The queue is full; Retry-After says when to try again.",
}


def install(app: FastAPI) -> None:
    """Let an application describe its bodies, errors and token."""
    app.openapi = _described(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _described(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes
            )
            for path, content in _BODIES.items():
                _describe(schema["paths"][path]["post"], content)
            schema["paths"]["/predict"]["post"]["parameters"] = _QUERY
            schema["paths"]["/predict"]["post"]["responses"]["200"] = {
                "description": "The answer; of several images {answers: […], version}.",
                "content": {"application/json": {"schema": _ANSWER}},
            }
            components = schema.setdefault("components", {})
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _describe(operation: dict[str, Any], content: dict[str, Any]) -> None:
    operation["requestBody"] = {"required": True, "content": content}
    for status, description in _ERRORS.items():
        operation["responses"][status] = {
            "description": description,
            "content": {"application/json": {"schema": _ERROR}},
        }


PAGE = Path(__file__).parent / "page"
"""The files of the pages; nothing in them is loaded from elsewhere."""
_CLIENT_CLOSED = 499
"""What nginx counts a request as whose client has gone; nobody sees it."""


def application(host: ModelHost, port: int) -> AccessControl:
    """Return the application for a model, behind its doors."""
    app = FastAPI(
        title="Patchline",
        version=metadata.version("patchline"),
        summary=f"Image classification with the registered model {host.name}.",
        docs_url=None,
        redoc_url=None,
        root_path=host.config.root_path,
        redirect_slashes=False,
    )
    app.state.server = Server(host)
    for router in (
        patchline_api.router,
        open_inference.router,
        mlflow_api.router,
        patchline_api.status_router,
        patchline_api.page_router,
    ):
        app.include_router(router)
    if host.config.feedback is not None:
        package = host.served.package
        app.state.feedback = feedback_api.opened_table(
            host.config.feedback, several=package.is_multi_label, classes=package.classes
        )
        app.include_router(feedback_api.router)
    app.add_api_route("/", _page("index.html"), include_in_schema=False)
    app.add_api_route("/docs", _page("interface.html"), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _failed)
    install(app)
    return AccessControl(app, host.config, port, host.metrics)


def _page(name: str) -> Any:
    async def page() -> Response:
        return FileResponse(PAGE / name, headers={"cache-control": "no-cache"})

    return page


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - it is registered for this class
    headers = dict(error.headers)
    if await left_unread(request):
        headers["connection"] = "close"
    server_of(request).host.metrics.refused.labels(error.status.phrase.lower()).inc()
    return json_response({"error": error.sentence}, status=error.status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for this class
    words = {
        HTTPStatus.NOT_FOUND: "There is nothing at this path. /docs lists what there is.",
        HTTPStatus.METHOD_NOT_ALLOWED: "This path does not accept this method. See /docs.",
    }
    headers = dict(error.headers or {})
    if await left_unread(request):
        headers["connection"] = "close"
    sentence = words.get(HTTPStatus(error.status_code), str(error.detail))
    return json_response({"error": sentence}, status=error.status_code, headers=headers)


async def _client_gone(request: Request, error: Exception) -> Response:
    del error
    server_of(request).host.metrics.refused.labels("client gone").inc()
    return Response(status_code=_CLIENT_CLOSED)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer what nobody expected; the log has the traceback."""
    del request, error
    return json_response(
        {"error": "The server failed. Its log says why."}, status=HTTPStatus.INTERNAL_SERVER_ERROR
    )
