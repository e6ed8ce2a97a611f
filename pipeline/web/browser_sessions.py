"""Browser sessions: one-time codes that open them, and signed cookies that hold them.

A browser sends the cookies of 127.0.0.1 to every port there, even to another user's server. So a
cookie is only valid on connections of the user whose browser received it, where the kernel tells
who owns a connection (Linux).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie

from patchline.pipeline.web import connection_owner

Ends = tuple[connection_owner.Address, connection_owner.Address]

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
    user = connection_owner.user_of(*ends) if ends else None
    return _ANYBODY if user is None else str(user)
