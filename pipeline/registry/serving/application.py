"""The application: every interface of the server, its pages, and its errors as one sentence."""

from __future__ import annotations

import logging
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from patchline.pipeline.registry.serving.interfaces import (
    feedback_api,
    interface_description,
    mlflow_api,
    open_inference,
    page_api,
    predict_api,
    status_api,
)
from patchline.pipeline.registry.serving.interfaces.answering import Server, server_of
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.web.access_control import AccessControl, left_unread
from patchline.pipeline.web.json_bodies import json_response
from patchline.pipeline.web.refusal import Refusal

logger = logging.getLogger(__name__)

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
        predict_api.router,
        open_inference.router,
        mlflow_api.router,
        status_api.status_router,
        page_api.page_router,
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
    interface_description.install(app)
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
