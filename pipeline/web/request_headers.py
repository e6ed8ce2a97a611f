"""The headers of a request, and whether it comes from a page of another origin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Of ASGI."""

READING = ("GET", "HEAD")
_OWN_SITE = ("same-origin", "none")


class Headers:
    """The headers of a request; a header that occurs twice has no value."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(
                value.decode("latin-1")
            )

    def all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._values.get(name, [])

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a header that occurs once."""
        values = self.all(name)
        return values[0] if len(values) == 1 else "" if values else default

    def __contains__(self, name: str) -> bool:
        """Return whether a header was sent at all."""
        return name in self._values

    def __getitem__(self, name: str) -> str:
        """Return the value of a header that occurs once."""
        return self.get(name)


def cross_origin_reason(
    scope: Scope,
    headers: Headers,
    is_own_host: Callable[[str], bool],
    own_origins: Callable[[str], Collection[str]],
) -> str | None:
    """Return why a request under another host name, or from another origin's page, is refused.

    Ports are different origins of the same site, so a request that is merely same-site is refused,
    too. A link on another page may be followed; nothing else is allowed from there.

    Args:
        scope: the request's ASGI scope.
        headers: the request's headers.
        is_own_host: whether the server may be called by the value of a `Host` header.
        own_origins: the origins of the server's own pages, for the value of a `Host` header.

    Returns:
        None if it may pass.
    """
    host = headers.get("host")
    if not is_own_host(host):
        return "The server is not known by this host name."
    if "origin" in headers:
        origins = headers.all("origin")
        if len(origins) != 1 or origins[0] not in own_origins(host):
            return "Pages of other origins may not call this server."
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        followed = (
            scope["type"] == "http"
            and scope["method"] in READING
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        if not followed:
            return "Other sites may not call this server."
    return None
