"""JSON in bodies of requests and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

VERSION_HEADER = "patchline-model-version"


def media_type(content_type: str) -> str:
    """Return the type in a Content-Type header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return an object in JSON.

    Half a surrogate pair that a client has sent, which has no UTF-8, becomes its escape again.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace")


def json_response(
    content: Mapping[str, Any],
    version: str | None = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a JSON answer; its header names the version of the model, too."""
    body = json_bytes(content)
    named = {VERSION_HEADER: version} if version is not None else {}
    return Response(
        body,
        status,
        {"cache-control": "no-store", **named, **(headers or {})},
        media_type="application/json",
    )
