"""The gate before a server on loopback: it decides which requests and WebSockets reach the server.

Requests from pages of other origins, requests under other host names, and requests without
credentials are refused before Prefect or MLflow sees them. Credentials are the folder's secret
(programs: HTTP Basic, as Prefect's and MLflow's clients send it) or a session cookie (browsers),
which a link with a one-time code sets.

`Limited` answers only as many requests at a time as the connections of a database suffice for. A
server that takes more waits for connections that its own other requests hold: MLflow opens a
second one while it holds the first, so that with a pool of 15 connections 32 writers stop each
other until SQLAlchemy gives up ("QueuePool limit"). Requests that wait here hold nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal
from urllib.parse import parse_qs

from patchline.pipeline.local_services import HOST, USER
from patchline.pipeline.web.request_headers import (
    READING,
    App,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    cross_origin_reason,
)
from patchline.pipeline.web.sign_in import CODES, LOGIN, FirstMessage, Sessions

_FIXED = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_TITLES = {"unknown": "Sign in to Patchline", "used": "This link is no longer valid"}
_WORDS = {
    "unknown": "Run <code>patchline up</code> in the folder of these servers and open one of the "
    "links that it prints; running servers are not restarted. This page then reloads.",
    "used": "A link works once, within an hour. Run <code>patchline up</code> again in the folder "
    "of these servers to get new links.",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style nonce="{nonce}">
body {{ font: 17px/1.5 system-ui, sans-serif; color: #1f2933; background: #f5f7fa; margin: 0; }}
main {{ max-width: 34em; margin: 18vh auto; padding: 0 1.5em; }}
h1 {{ font-size: 1.5em; }}
code {{ background: #e4e7eb; padding: .1em .35em; border-radius: .25em; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #e4e7eb; background: #1f2933; }} code {{ background: #3e4c59; }}
}}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{text}</p>
</main>
<script nonce="{nonce}">
async function look() {{
  try {{
    const answer = await fetch("/patchline/session", {{ cache: "no-store" }});
    if (answer.status === 204) {{
      if (location.pathname === "/patchline/login") location.replace("/"); else location.reload();
      return;
    }}
  }} catch {{ /* the server is restarting */ }}
  setTimeout(look, 1500);
}}
look();
</script>
</body>
</html>
"""


@dataclass
class GateResponse:
    """A short answer to a request."""

    status: HTTPStatus
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        """Send it; browsers do not store it, and linked pages do not learn its address."""
        body = self.text.encode()
        length = {"content-length": str(len(body))} if self.status != HTTPStatus.NO_CONTENT else {}
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in {**_FIXED, **self.headers, **length}.items()
        ]
        await send({"type": "http.response.start", "status": int(self.status), "headers": headers})
        await send({"type": "http.response.body", "body": body})


def refusal(status: HTTPStatus, reason: str) -> GateResponse:
    """Return the refusal of a request, as JSON."""
    return GateResponse(
        status, json.dumps({"detail": reason}), {"content-type": "application/json"}
    )


def sign_in_page(why: Literal["unknown", "used"]) -> GateResponse:
    """Return the page that explains how to sign in and reloads once the browser is signed in."""
    nonce = secrets.token_urlsafe(12)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return GateResponse(
        HTTPStatus.UNAUTHORIZED,
        _PAGE.format(title=_TITLES[why], text=_WORDS[why], nonce=nonce),
        {"content-type": "text/html; charset=utf-8", "content-security-policy": policy},
    )


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
    """The path that a browser is sent to after signing in; None if the server has no pages."""


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


_GOODBYE_SECONDS = 3
"""How long open connections, such as those of a page in a browser, delay the shutdown."""


def serve(
    guarded: Guarded,
    secret: str,
    log_level: str = "warning",
    lifespan: Literal["auto", "on", "off"] = "auto",
    listening: socket.socket | None = None,
) -> None:
    """Serve until a signal arrives.

    Args:
        guarded: the application and its port.
        secret: what clients authenticate with.
        log_level: the lowest level of the messages in the server's own log, such as `warning`.
        lifespan: whether the application has start-up and shutdown code, as uvicorn takes it.
        listening: a socket that already listens on the port.
    """
    import uvicorn

    config = uvicorn.Config(
        Gate(guarded, secret),
        host=HOST,
        port=guarded.port,
        log_level=log_level,
        access_log=False,
        proxy_headers=False,  # a client's own claim about its address is not trusted
        lifespan=lifespan,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=None if listening is None else [listening])


_WITHOUT_DATABASE = ("/health", "/version")
_TRANSFERS = "artifact"
"""In the paths of requests that transfer files, which may take long."""
_MOST_TRANSFERS = 32
_NESTED = 2
"""Connections that one request may hold at the same time."""


class Limited:
    """An ASGI application that passes on a limited number of requests at a time."""

    def __init__(self, app: App, connections: int) -> None:
        self._app = app
        self._requests = asyncio.Semaphore(max(1, connections // _NESTED))
        self._transfers = asyncio.Semaphore(_MOST_TRANSFERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request once it is its turn."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path.endswith(_WITHOUT_DATABASE):
            await self._app(scope, receive, send)
            return
        async with self._transfers if _TRANSFERS in path else self._requests:
            await self._app(scope, receive, send)
