"""How clients of the gate sign in: browsers by a link and a cookie, Python clients by a secret.

A browser sends the cookies of 127.0.0.1 to every port there, even to another user's server. So a
cookie is only valid on connections of the user whose browser received it, where the kernel tells
who owns a connection (Linux).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from patchline.pipeline import local_services
from patchline.pipeline.local_services import Services
from patchline.pipeline.web.request_headers import Message, Receive, Send

Address = tuple[str, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _STATE, _USER = 1, 2, 3, 7
"""Columns of the kernel's tables."""
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
"""What precedes an IPv4 address in the table for IPv6."""


def user_of(client: Address, server: Address) -> int | None:
    """Return the id of the user who owns the client's end of a connection.

    Returns:
        None if the kernel does not tell: not Linux, not IPv4, or no longer connected.
    """
    try:
        ends = (_format_address(client), _format_address(server))
    except OSError:
        return None
    for table in _TABLES:
        try:
            text = table.read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            if ends[0] not in line:
                continue
            words = line.split()
            addresses = (words[_LOCAL].removeprefix(_MAPPED), words[_REMOTE].removeprefix(_MAPPED))
            if addresses == ends and words[_STATE] == _ESTABLISHED:
                return int(words[_USER])
    return None


def _format_address(address: Address) -> str:
    """Return an IPv4 address and port as the tables write them.

    Raises:
        OSError: if it is not an IPv4 address.
    """
    number = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{number:08X}:{address[1]:04X}"


Ends = tuple[Address, Address]

LOGIN, CODES = "/patchline/login", "/patchline/login-codes"
"""Paths: what opens a session by a code, and what issues codes."""
CODE_SECONDS = 3600
"""How long a link is valid."""
SESSION_SECONDS = 30 * 24 * 3600
_MOST_CODES = 1000
_ANYBODY = "-"


class Sessions:
    """The sessions of the servers of one folder, which share a secret."""

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()
        self._codes: dict[str, float] = {}
        self.cookie = f"patchline_{self._sign('name')[:8]}"

    def new_code(self) -> str:
        """Return a code that opens one session within an hour."""
        now = time.monotonic()
        self._codes = {code: end for code, end in self._codes.items() if end > now}
        while len(self._codes) >= _MOST_CODES:
            self._codes.pop(next(iter(self._codes)))
        code = secrets.token_hex(24)  # terminals would cut punctuation off the end of a link
        self._codes[_digest(code)] = now + CODE_SECONDS
        return code

    def take_code(self, code: str) -> bool:
        """Return whether a code is valid, and make it invalid."""
        return self._codes.pop(_digest(code), 0.0) > time.monotonic()

    def new_cookie(self, ends: Ends | None) -> str:
        """Return the value of the Set-Cookie header that opens a session."""
        user = _user(ends)
        content = f"{int(time.time()) + SESSION_SECONDS}.{user}.{secrets.token_urlsafe(12)}"
        value = f"{content}.{self._sign(content)}"
        flags = f"Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"
        return f"{self.cookie}={value}; {flags}"

    def is_open(self, cookies: list[str], ends: Ends | None) -> bool:
        """Return whether the cookies of a request hold a valid session of the user who sends it."""
        content, _, signature = self._given(cookies).rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(content).encode()):
            return False
        end, user, _ = content.split(".")
        return int(end) > time.time() and user in (_ANYBODY, _user(ends))

    def _given(self, cookies: list[str]) -> str:
        for header in cookies:
            try:
                found = SimpleCookie(header).get(self.cookie)
            except CookieError:
                continue
            if found is not None:
                return found.value
        return ""

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, f"session {text}".encode(), hashlib.sha256).hexdigest()


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _user(ends: Ends | None) -> str:
    user = user_of(*ends) if ends else None
    return _ANYBODY if user is None else str(user)


_SECONDS = 20.0


def prefect_link(services: Services) -> str:
    """Return a link that opens the Prefect UI."""
    return _link(services, "prefect", services.prefect_url)


def mlflow_link(services: Services) -> str:
    """Return a link that opens the MLflow UI."""
    return _link(services, "mlflow", services.mlflow_url)


def _link(services: Services, name: str, url: str) -> str:
    """Return a link with a code; the plain address if the server is the user's or is down."""
    secret = local_services.secret(services.folder)
    if name not in services.own or secret is None:
        return url
    credentials = base64.b64encode(f"{local_services.USER}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{url}{CODES}", method="POST", headers={"authorization": f"Basic {credentials}"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SECONDS) as response:
            code = json.load(response)["code"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return url
    return f"{url}{LOGIN}?code={code}"


_POLICY_VIOLATION = 1008


class FirstMessage:
    """Blocks what an application sends on a socket until the first message contains the secret."""

    def __init__(self, token: str, receive: Receive, send: Send) -> None:
        self._token = token
        self._receive = receive
        self._send = send
        self._known = self._closed = False

    async def receive(self) -> Message:
        """Return the next message; close the socket if it is the first and has no secret."""
        message = await self._receive()
        if self._known or message["type"] != "websocket.receive":
            return message
        if self._has_secret(message):
            self._known = True
            return message
        self._closed = True
        reason = "The first message does not contain the server's secret."
        await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}

    async def send(self, message: Message) -> None:
        """Send a message of the application once the client is known; drop it before."""
        if self._closed or (message["type"] == "websocket.send" and not self._known):
            return
        await self._send(message)

    def _has_secret(self, message: Message) -> bool:
        try:
            content = json.loads(message.get("text") or message.get("bytes") or "")
        except ValueError:
            return False
        if not isinstance(content, dict) or content.get("type") != "auth":
            return False
        return hmac.compare_digest(str(content.get("token")).encode(), self._token.encode())
