"""WebSockets of Prefect's Python clients, which send the secret in their first message."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]

_POLICY_VIOLATION = 1008


class FirstMessage:
    """Blocks what an application sends on a socket until the first message contains the secret."""

    def __init__(
        self,
        token: str,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
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
