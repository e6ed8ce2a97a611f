"""The gate before a server on loopback: it decides which requests and WebSockets reach the server.

Requests from pages of other origins, requests under other host names, and requests without
credentials are refused before Prefect or MLflow sees them. Credentials are the folder's secret
(programs: HTTP Basic, as Prefect's and MLflow's clients send it) or a session cookie (browsers),
which a link with a one-time code sets.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from patchline.pipeline.local_login import USER
from patchline.pipeline.local_services import HOST
from patchline.pipeline.web.browser_sessions import CODES, LOGIN, Sessions
from patchline.pipeline.web.gate_answers import GateResponse, refusal, sign_in_page
from patchline.pipeline.web.request_headers import (
    READING,
    Headers,
    Scope,
    cross_origin_reason,
)
from patchline.pipeline.web.websocket_login import FirstMessage

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SESSION = "/patchline/session"
_NAMES = (HOST, "localhost", "[::1]")


@dataclass(frozen=True)
class Guarded:
    """The server behind the gate."""

    app: App
    port: int
    health: str
    """The path of the health check, which needs no credentials."""
    home: str | None = "/"
    """Where a browser is sent after signing in; none if the server has no pages."""


class Gate:
    """An ASGI application that passes permitted requests to another one."""

    def __init__(self, guarded: Guarded, secret: str) -> None:
        self._guarded = guarded
        self._sessions = Sessions(secret)
        self._token = f"{USER}:{secret}"
        self._basic = base64.b64encode(self._token.encode())
        self._hosts = {f"{name}:{guarded.port}" for name in _NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse or pass on a request."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._guarded.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope)
        answer = self._foreign(scope, headers)
        if answer is None:
            if scope["path"] == self._guarded.health and scope["method"] in READING:
                await self._guarded.app(scope, receive, self._isolated(send))
                return
            answer = self._redirected(scope, headers) or self._own(scope, headers)
        if answer is None and self._has_credentials(scope, headers):
            await self._guarded.app(_without_secret(scope), receive, self._isolated(send))
            return
        await (answer or self._without_credentials(scope, headers)).send(send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope)
        if self._foreign(scope, headers) is None:
            if self._has_credentials(scope, headers):
                await self._guarded.app(_without_secret(scope), receive, send)
                return
            if "origin" not in headers and "prefect" in scope.get("subprotocols", ()):
                first = FirstMessage(self._token, receive, send)
                await self._guarded.app(scope, first.receive, first.send)
                return
        await send({"type": "websocket.close", "code": 1008})

    def _foreign(self, scope: Scope, headers: Headers) -> GateResponse | None:
        """Return the refusal of a request under another host name or from another origin's page."""
        reason = cross_origin_reason(
            scope, headers, self._hosts.__contains__, lambda host: (f"http://{host}",)
        )
        return refusal(HTTPStatus.FORBIDDEN, reason) if reason else None

    def _redirected(self, scope: Scope, headers: Headers) -> GateResponse | None:
        """Return the redirect to the one host name that pages call and sessions are valid for."""
        name = f"{HOST}:{self._guarded.port}"
        if headers["host"] == name or not _is_navigation(scope, headers):
            return None
        query = scope.get("query_string", b"").decode("latin-1")
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        where = f"http://{name}{path}" + (f"?{query}" if query else "")
        return GateResponse(HTTPStatus.TEMPORARY_REDIRECT, headers={"location": where})

    def _own(self, scope: Scope, headers: Headers) -> GateResponse | None:
        """Return the answer of an address that the gate itself serves."""
        path, method = scope["path"], scope["method"]
        if path == SESSION:
            known = self._has_credentials(scope, headers)
            return GateResponse(HTTPStatus.NO_CONTENT if known else HTTPStatus.UNAUTHORIZED)
        if path == CODES and method == "POST" and self._knows_secret(headers):
            text = json.dumps({"code": self._sessions.new_code()})
            return GateResponse(HTTPStatus.CREATED, text, {"content-type": "application/json"})
        if path == LOGIN and self._guarded.home is not None:
            if method != "GET" or "sec-purpose" in headers:  # a link preview is not a click
                return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Open the link in a browser.")
            return self._sign_in(scope, headers, self._guarded.home)
        return None

    def _sign_in(self, scope: Scope, headers: Headers, home: str) -> GateResponse:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        inside = {"location": home}
        if self._sessions.take_code(query.get("code", [""])[0]):
            inside["set-cookie"] = self._sessions.new_cookie(_ends(scope))
        elif not self._has_credentials(scope, headers):
            return sign_in_page("used")
        return GateResponse(HTTPStatus.SEE_OTHER, headers=inside)

    def _has_credentials(self, scope: Scope, headers: Headers) -> bool:
        if self._knows_secret(headers):
            return True
        reads = scope["type"] == "http" and scope["method"] in READING
        if not (reads or "origin" in headers):
            return False  # browsers name the origin of anything but reads
        return self._sessions.is_open(headers.all("cookie"), _ends(scope))

    def _knows_secret(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._basic)
        return right and scheme.lower() == "basic"

    def _isolated(self, send: Send) -> Send:
        """Return a `send` whose answers no other origin may read, embed or frame.

        This covers what a browser has cached, too: the ports of one host share a cache. The pages
        may connect to this server only, which blocks the telemetry of Prefect's and MLflow's UIs.
        """
        asked = " ".join(f"ws://{host}" for host in sorted(self._hosts))
        fixed = [
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"content-security-policy", f"connect-src 'self' blob: data: {asked}".encode()),
        ]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    pair
                    for pair in message.get("headers", [])
                    if not pair[0].lower().startswith(b"access-control-")
                ]
                if not any(name.lower() == b"x-frame-options" for name, _ in kept):
                    kept.append((b"x-frame-options", b"SAMEORIGIN"))
                message = {**message, "headers": [*kept, *fixed]}
            await send(message)

        return sent

    def _without_credentials(self, scope: Scope, headers: Headers) -> GateResponse:
        if self._guarded.home is not None and _is_navigation(scope, headers):
            return sign_in_page("unknown")
        answer = refusal(HTTPStatus.UNAUTHORIZED, "This server requires its secret.")
        if "sec-fetch-mode" not in headers:  # a browser would open a password prompt
            answer.headers["www-authenticate"] = f'Basic realm="{USER}"'
        return answer


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """Return whether the request opens a page in a browser."""
    if scope["method"] != "GET":
        return False
    return headers.get("sec-fetch-mode", "navigate") == "navigate" and (
        "text/html" in headers.get("accept")
    )


def _ends(scope: Scope) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """Return the client's and the server's address of a connection."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return None
    return (client[0], client[1]), (server[0], server[1])


def _without_secret(scope: Scope) -> Scope:
    """Return the request without the secret, which nothing behind the gate needs."""
    kept = [pair for pair in scope["headers"] if pair[0].lower() != b"authorization"]
    return {**scope, "headers": kept}
