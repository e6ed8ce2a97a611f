"""Proxies of the environment: never between processes of this machine, kept for everything else.

`http_proxy`, `https_proxy` and `all_proxy` are read by all HTTP and WebSocket libraries, each in a
way of its own. So the environment is corrected once, before a library or a process needs it:

- The addresses of this machine are added to `no_proxy` and `NO_PROXY`.
- A variable that Prefect's client cannot use is removed. The client, httpx, prepares connections
  for all variables when it is created, and fails there even if it only talks to this machine: for
  a SOCKS proxy without the package socksio, and for what is not the address of a proxy.

`check` raises where such a variable would have been needed.
"""

from __future__ import annotations

import ipaddress
import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from pipeline.errors import OrchestrationError
from pipeline.redaction import redacted

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_EXEMPTIONS = ("no_proxy", "NO_PROXY")
NAMES = (*_EXEMPTIONS, *_PROXIES, *(name.upper() for name in _PROXIES))
"""The variables that `apply` may change."""
_HERE = ("localhost", "127.0.0.1", "::1", "127.0.0.0/8", "0.0.0.0", ".localhost")  # noqa: S104 - not a server
"""Each library understands some of these spellings; none may have brackets, which httpx refuses."""
_SERVERS = (
    "PREFECT_API_URL",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_S3_ENDPOINT_URL",
    "AWS_ENDPOINT_URL",
)
"""Variables that may name a server on this machine under another loopback address."""
_SOCKS = ("socks5", "socks5h")
_SOCKS_PACKAGES = {"socksio": "socksio", "socks": "PySocks", "python_socks": "python-socks"}
"""What httpx, requests and websockets need for a SOCKS proxy: module and package."""
_removed: dict[str, str] = {}
"""Variables that this process removed, with their values."""


def apply() -> None:
    """Exempt this machine from proxies, in this process and in the processes that it starts."""
    for name in list(os.environ):
        if name.lower() in _PROXIES and not _is_usable(os.environ[name]):
            _removed[name] = os.environ.pop(name)
    servers = (os.environ.get(name, "") for name in _SERVERS)
    exempt(*(server for server in servers if "://" in server))


def exempt(*servers: str) -> None:
    """Exempt this machine, and those of these servers that run on it.

    Args:
        servers: their URLs.
    """
    hosts = [urlsplit(server).hostname or "" for server in servers if is_here(server)]
    lower, upper = (os.environ.get(name, "") for name in _EXEMPTIONS)
    for name, given in zip(_EXEMPTIONS, (lower or upper, upper or lower), strict=True):
        if given.strip() != "*":  # no proxy at all; libraries know the asterisk only on its own
            names = [entry.strip() for entry in given.split(",") if entry.strip()]
            os.environ[name] = ",".join(dict.fromkeys([*names, *_HERE, *hosts]))


def is_here(url: str) -> bool:
    """Return whether a URL names this machine by a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def check(url: str) -> None:
    """Check that a server on another machine can be reached by the proxies of the environment.

    Raises:
        OrchestrationError: if the proxy for it cannot be used.
    """
    if is_here(url) or _is_exempt(url):
        return
    parts = urlsplit(url)
    for wanted in (f"{parts.scheme}_proxy", "all_proxy"):
        for name, value in [*_removed.items(), *os.environ.items()]:
            if name.lower() == wanted and value:
                _check_one(name, value, parts.hostname or "")
                return


def _check_one(name: str, value: str, host: str) -> None:
    shown = redacted(value)
    if _scheme(value) in _SOCKS:
        missing = [package for module, package in _SOCKS_PACKAGES.items() if not find_spec(module)]
        if missing:
            raise OrchestrationError(
                f"{name} is {shown}, a SOCKS proxy, but {host} cannot be reached by it without "
                f"more packages. Run `pip install {' '.join(missing)}`, set an HTTP proxy, or add "
                f"{host} to no_proxy."
            )
    elif not _is_usable(value):
        raise OrchestrationError(
            f"{name} is {shown!r}, which is no proxy that can be used to reach {host}. Set it to "
            f"http://HOST:PORT or socks5://HOST:PORT, or add {host} to no_proxy."
        )


def _is_exempt(url: str) -> bool:
    from urllib.request import proxy_bypass

    return bool(proxy_bypass(urlsplit(url).netloc.rpartition("@")[2]))


def _is_usable(value: str) -> bool:
    """Return whether httpx accepts the value of a variable; an empty one means no proxy."""
    if not value:
        return True
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        known = (parts.hostname or "").strip() and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False
    socks = _SOCKS if find_spec("socksio") else ()
    return bool(known) and parts.scheme in ("http", "https", *socks)


def _scheme(value: str) -> str:
    return value.partition("://")[0].lower() if "://" in value else "http"
