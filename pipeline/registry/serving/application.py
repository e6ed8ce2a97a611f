"""The application: every interface of the server, its pages, and its errors as one sentence."""

from __future__ import annotations

import json
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

_PARTS = json.loads((Path(__file__).parent / "openapi" / "parts.json").read_bytes())
"""What the description of the interface says of bodies by path, options, the answer and errors."""
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
    describe(app)
    return AccessControl(app, host.config, port, host.metrics)


def describe(app: FastAPI) -> None:
    """Let the description of an application's interface say what FastAPI cannot see."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes
            )
            for path, content in _PARTS["bodies"].items():
                operation = schema["paths"][path]["post"]
                operation["requestBody"] = {"required": True, "content": content}
                for status, description in _PARTS["errors"].items():
                    operation["responses"][status] = _response(description, _PARTS["error"])
            predict = schema["paths"]["/predict"]["post"]
            predict["parameters"] = [
                {"name": name, "in": "query", "required": False, "schema": option}
                for name, option in _PARTS["options"].items()
            ]
            predict["responses"]["200"] = _response(
                "The answer; of several images {answers: […], version}.", _PARTS["answer"]
            )
            components = schema.setdefault("components", {})
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


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
