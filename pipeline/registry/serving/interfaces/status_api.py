"""Health, metrics, and the description of the interface."""

from __future__ import annotations

import datetime as dt
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.interfaces.answering import server_of
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.web.json_bodies import json_response
from patchline.pipeline.web.server_metrics import CONTENT_TYPE

status_router = APIRouter(tags=["status"])


@status_router.get("/healthz")
async def healthz() -> Response:
    """Tell that the process runs."""
    return json_response({"status": "ok"})


@status_router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Tell whether requests are answered."""
    is_ready = server_of(request).host.is_ready
    status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return json_response({"status": "ready" if is_ready else "not ready"}, status=status)


@status_router.get("/status")
async def status(request: Request) -> Response:
    """Tell which version answers, what the registry says, and how much waits."""
    host = server_of(request).host
    return json_response(described(host))


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


def described(host: ModelHost) -> dict[str, Any]:
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
