"""The answers of the gate itself: refusals, and the sign-in page for a browser."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

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

    async def send(self, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
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
