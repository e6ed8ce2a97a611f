"""Serve one model until a signal arrives, and answer what was taken by then.

The application has every interface of the server and its pages; errors are one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from patchline.pipeline.registry.serving.alias_watch import AliasWatch, Registry
from patchline.pipeline.registry.serving.checked_package import Checked
from patchline.pipeline.registry.serving.interfaces import (
    feedback_api,
    mlflow_api,
    open_inference,
    patchline_api,
)
from patchline.pipeline.registry.serving.interfaces.answering import Server, server_of
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.registry.serving.traffic_recorder import TrafficRecorder
from patchline.pipeline.web.access_control import AccessControl, read_rest
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import CertificateRenewal
from patchline.pipeline.web.request_body import Refusal, json_response
from patchline.pipeline.web.server_metrics import ServerMetrics
from patchline.pipeline.web.uvicorn_server import ReadyServer, uvicorn_config

logger = logging.getLogger(__name__)

_CERTIFICATE_CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class FirstVersion:
    """The version that a server answers with first."""

    name: str
    """The name of the registered model."""
    alias: str | None
    """The alias to follow; None for a fixed version."""
    version: str
    load: Callable[[], Checked]
    """Opens and checks its package. The server alone holds it: memory is free after a switch."""


def serve(
    first: FirstVersion,
    config: ServingConfig,
    listening: socket.socket,
    on_ready: Callable[[], None],
    registry: Registry,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        first: the version that answers first.
        config: the server's settings.
        listening: socket of the server.
        on_ready: called once requests are answered.
        registry: the registry that says where the alias points.

    Raises:
        PackageRefusedError: if the first version may not be served.
    """
    _allow_many_connections()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)  # longer ones take long
    cv2.setNumThreads(1)  # the engine's threads are the parallelism, and have their priorities

    async def until_stopped() -> None:
        recorder = recorder_of(config)
        metrics = ServerMetrics()
        if recorder is not None:
            metrics.recording(lambda: recorder.problem is None)
        host = ModelHost(first.name, first.alias, config, metrics, recorder=recorder)
        host.switch_to(first.version, first.load())
        server = _Server(
            host, uvicorn_config(application(host, listening.getsockname()[1]), config), on_ready
        )
        watch = AliasWatch(host, registry) if host.alias is not None else None
        gc.collect()
        gc.freeze()  # what exists already stays
        try:
            await server.serve(sockets=[listening])
        finally:
            if watch is not None:
                await asyncio.to_thread(watch.stop)
            await host.close()
            if recorder is not None:
                recorder.close()

    asyncio.run(until_stopped())


def recorder_of(config: ServingConfig) -> TrafficRecorder | None:
    """Return what records the traffic; None if the settings do not ask for it.

    Raises:
        ConfigError: if its folder cannot be used.
    """
    if config.record is None:
        return None
    return TrafficRecorder(config.record, with_images=config.record_images)


class _Server(ReadyServer):
    """The server of a model, which renews its certificate and stops once it has answered."""

    def __init__(
        self, host: ModelHost, config: uvicorn.Config, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config, on_ready)
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell so."""
        self._renewal = asyncio.ensure_future(self._renew_certificate())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more, and answer what was taken."""
        self._host.is_stopping = True
        self._renewal.cancel()
        logger.info("Stopping: %d images are still to be answered.", self._host.pending)
        await asyncio.sleep(0)  # connections in the backlog are accepted
        await super().shutdown(sockets)

    async def _renew_certificate(self) -> None:
        """Read the certificate again when its files have changed: it may have been renewed."""
        if self.config.ssl is None:
            return
        renewal = CertificateRenewal(self._host.config, self.config.ssl)
        while True:
            await asyncio.sleep(_CERTIFICATE_CHECK_SECONDS)
            renewal.check()


def _allow_many_connections() -> None:
    """Raise the number of files that this process may open to the most that is allowed."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# -- the application ---------------------------------------------------------------------------


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
        app.state.feedback = feedback_api.open_table(
            host.config.feedback, several=package.is_multi_label, classes=package.classes
        )
        app.include_router(feedback_api.router)
    app.add_api_route("/", _page("index.html"), include_in_schema=False)
    app.add_api_route("/docs", _page("interface.html"), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
    app.add_exception_handler(Refusal, _handle_refusal)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _handle_failure)
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


async def _handle_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - it is registered for this class
    server_of(request).host.metrics.refused.labels(error.status.phrase.lower()).inc()
    return await _error(request, error.sentence, error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for this class
    words = {
        HTTPStatus.NOT_FOUND: "There is nothing at this path. /docs lists what there is.",
        HTTPStatus.METHOD_NOT_ALLOWED: "This path does not accept this method. See /docs.",
    }
    sentence = words.get(HTTPStatus(error.status_code), str(error.detail))
    return await _error(request, sentence, error.status_code, error.headers or {})


async def _error(
    request: Request, sentence: str, status: int, headers: Mapping[str, str]
) -> Response:
    closing = {"connection": "close"} if await read_rest(request) else {}
    return json_response({"error": sentence}, status=status, headers={**headers, **closing})


async def _client_gone(request: Request, error: Exception) -> Response:
    del error
    server_of(request).host.metrics.refused.labels("client gone").inc()
    return Response(status_code=_CLIENT_CLOSED)


async def _handle_failure(request: Request, error: Exception) -> Response:
    """Answer what nobody expected; the log has the traceback."""
    del request, error
    return json_response(
        {"error": "The server failed. Its log says why."}, status=HTTPStatus.INTERNAL_SERVER_ERROR
    )
