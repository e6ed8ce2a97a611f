"""Who may call the server: its host names, the origins of its own pages, and the token.

Probes of health pass without any of that, because a cluster calls them by an address; they tell
nothing about the model. The files of the page pass without the token, which the page asks for.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import time
from http import HTTPStatus

from starlette.requests import Request

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.config import TOKEN_VARIABLE, ServingConfig
from patchline.pipeline.web.request_body import BODY_READ, drain
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
from patchline.pipeline.web.server_metrics import ServerMetrics

PROBES = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/ping", "/health")
_OPEN, _OPEN_FOLDER = ("/", "/docs"), "/static/"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; media-src 'self' blob:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class AccessControl:
    """An ASGI application that passes permitted requests to another one, and counts all.

    Args:
        app: the application that answers permitted requests.
        config: the server's settings.
        port: the port that the server listens on.
        metrics: the server's metrics, which count the requests.
    """

    def __init__(self, app: App, config: ServingConfig, port: int, metrics: ServerMetrics) -> None:
        self._app = app
        self._root = config.root_path
        self._token = None if config.token is None else config.token.encode()
        self._scheme = "https" if config.tls_certificate else "http"
        self._names = {*_LOOPBACK, _bracket(config.host.lower())}
        self._port = port
        self._allowed = {name.lower() for name in config.allowed_host}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse or pass on a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if self._root and not scope["path"].startswith(f"{self._root}/"):
            scope["path"] = self._root + scope["path"]  # the proxy has left the path out
        if scope["method"] == "HEAD":  # answered as GET; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}
        refused = self._why_refused(scope)
        if refused is None:
            await self._app(scope, receive, sent)
        else:
            await _refuse(scope, receive, sent, *refused)
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(time.perf_counter() - began)

    def _why_refused(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        path = self._path(scope)
        headers = Headers(scope)
        reading = scope["method"] in READING
        if path in PROBES and reading and "origin" not in headers:
            return None
        arrived_at = (scope.get("server") or ("", 0))[0]
        reason = cross_origin_reason(
            scope, headers, lambda host: self._is_own(host, arrived_at), self._own_origins
        )
        if reason:
            name = headers.get("host").rpartition(":")[0] or headers.get("host")
            remedy = f" Add --allowed-host {name[:100]}." if name and "host name" in reason else ""
            self._metrics.refused.labels("foreign").inc()
            return HTTPStatus.FORBIDDEN, reason + remedy
        if reading and (path in _OPEN or path.startswith(_OPEN_FOLDER)):
            return None
        if not self._knows_token(headers):
            self._metrics.refused.labels("token").inc()
            return HTTPStatus.UNAUTHORIZED, "Send the header Authorization: Bearer TOKEN."
        return None

    def _path(self, scope: Scope) -> str:
        path = str(scope["path"])
        return path[len(self._root) :]

    def _is_own(self, host: str, arrived_at: str) -> bool:
        """Return whether the server may be called by the value of a `Host` header.

        That is a name that was allowed, this machine's own, or the address at which the connection
        arrived: no name of another site leads to an address in the header.
        """
        host = host.lower()
        name, port = _split_host(host)
        if host in self._allowed or name in self._allowed:
            return True
        default = 443 if self._scheme == "https" else 80
        is_port = (port or str(default)) == str(self._port)
        return is_port and (name in self._names or name == _bracket(arrived_at))

    def _own_origins(self, host: str) -> set[str]:
        schemes = ("https",) if self._scheme == "https" else ("http", "https")
        return {f"{scheme}://{name}" for scheme in schemes for name in (host, *self._allowed)}

    def _knows_token(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        return right and scheme.lower() == "bearer"


async def _refuse(
    scope: Scope, receive: Receive, send: Send, status: HTTPStatus, sentence: str
) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="patchline"'))
    if await read_rest(Request(scope, receive)):
        headers.append((b"connection", b"close"))
    body = json.dumps({"error": sentence}).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_rest(request: Request) -> bool:
    """Read what is left of the body of a request that is refused; return whether there is more.

    A client that still sends when the connection is closed does not see the answer.
    """
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    if not has_body or request.scope.get(BODY_READ):
        return False
    return not await drain(request)


def _split_host(host: str) -> tuple[str, str]:
    """Return the name and the port of a `Host` header; the port is empty without one."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and "]" not in port else (host, "")


def _bracket(address: str) -> str:
    """Return an address as a `Host` header writes it."""
    try:
        is_ipv6 = ipaddress.ip_address(address).version == 6  # noqa: PLR2004 - IPv6
    except ValueError:
        return address
    return f"[{address}]" if is_ipv6 else address


def check_access(config: ServingConfig, use: str = "use the model") -> None:
    """Check that a server which others reach has a token.

    Args:
        config: the server's settings.
        use: what others could do with it.

    Raises:
        ConfigError: if it has none, or its root path is no path.
    """
    if config.root_path and (not config.root_path.startswith("/") or config.root_path[-1] == "/"):
        raise ConfigError(
            f"--root-path {config.root_path} must begin with a slash and end without one, such as "
            "/flowers."
        )
    if config.token is None and not is_loopback(config.host):
        raise ConfigError(
            f"--host {config.host} lets other machines {use}, which needs a token. Add "
            f"--token-file FILE, or set {TOKEN_VARIABLE}."
        )


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
