"""Proxies of the environment: never between processes of this machine, kept for everything else.

`http_proxy`, `https_proxy` and `all_proxy` are read by all HTTP and WebSocket libraries, each in a
way of its own. So the environment is corrected once, before a library or a process needs it:

- The addresses of this machine are added to `no_proxy` and `NO_PROXY`.
- An entry of theirs that Prefect's client cannot read is written as it can, or left out, which
  `left_out` says.
- A variable that Prefect's client cannot use is removed. The client, httpx, prepares connections
  for all variables when it is created, and fails there even if it only talks to this machine: for
  a SOCKS proxy without the package socksio, and for what is not the address of a proxy.

`check` raises where such a variable would have been needed.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.redaction import redacted

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
_IPV6 = 6
_SOCKS_PACKAGES = {
    "httpx": ("socksio", "socksio"),
    "requests": ("socks", "PySocks"),
    "websockets": ("python_socks", "python-socks"),
}
"""What each library needs for a SOCKS proxy: module and package."""
_ORDINARY = re.compile(r"[*.]*[\w-]+(\.[\w-]+)*\.?(:\d{1,4})?", re.ASCII)
"""A name or an IPv4 address, maybe with a port, which all libraries accept in `no_proxy`."""
_BRACKETS = re.compile(r"\[([^]]+)](?::(\d+))?")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_removed: dict[str, str] = {}
"""Variables that this process removed, with their values."""
_networks: set[_Network] = set()
"""Networks of IPv6 that this process left out of `no_proxy`: no library understands them."""
_left_out: dict[str, None] = {}
"""Entries that this process left out of `no_proxy`, as they were given, in their order."""


def apply() -> None:
    """Exempt this machine from proxies, in this process and in the processes that it starts."""
    for name in list(os.environ):
        if name.lower() in _PROXIES:
            _removed.pop(name, None)  # it has been set again
            if not _is_usable(os.environ[name]):
                _removed[name] = os.environ.pop(name)
    servers = (os.environ.get(name, "") for name in _SERVERS)
    exempt(*(server for server in servers if "://" in server))


def forget() -> None:
    """Forget what `apply` removed, because the variables are as the user has set them again."""
    _removed.clear()
    _networks.clear()
    _left_out.clear()


def left_out() -> str:
    """Return one sentence about entries of `no_proxy` that have no effect; empty if all have one.

    Without a proxy, none is missed.
    """
    if not _left_out or not any(os.environ.get(name) for name in NAMES if name.lower() in _PROXIES):
        return ""
    entries = ", ".join(repr(redacted(entry)) for entry in _left_out)
    return (
        f"no_proxy: left out {entries}, which the HTTP libraries cannot read. Name hosts, "
        "domains, addresses or networks of IPv4, such as host.corp, .corp, fd00::5 or 10.0.0.0/8; "
        "networks of IPv6 apply to Prefect and MLflow servers only."
    )


def exempt(*servers: str) -> None:
    """Exempt this machine, and those of these servers that run on it or in an exempt network.

    Few libraries understand networks in `no_proxy`, but all of them understand an address.

    Args:
        servers: their URLs.
    """
    lower, upper = (os.environ.get(name, "") for name in _EXEMPTIONS)
    for name, given in zip(_EXEMPTIONS, (lower or upper, upper or lower), strict=True):
        if given.strip() == "*":  # no proxy at all; libraries know the asterisk only on its own
            continue
        entries = [entry for entry in re.split(r"[,\s]+", given) if entry]
        networks = {found for entry in entries if (found := _network(entry))}
        _networks.update(each for each in networks if each.version == _IPV6)
        understood = {entry: _understood(entry) for entry in entries}
        _left_out.update(dict.fromkeys(entry for entry, known in understood.items() if not known))
        names = [known for known in understood.values() if known]
        here = [urlsplit(each).hostname or "" for each in servers if is_here(each)]
        near = [address for each in servers if (address := _address_in(networks | _networks, each))]
        os.environ[name] = ",".join(dict.fromkeys([*names, *_HERE, *here, *near]))


@cache
def _understood(entry: str) -> str | None:
    """Return an entry of `no_proxy` as all libraries can read it; none if there is no such way."""
    if "/" in entry and (network := _network(entry)):
        if network.num_addresses == 1:
            return str(network.network_address)
        return entry if network.version != _IPV6 else None
    if bracketed := _BRACKETS.fullmatch(entry):
        address, port = bracketed.groups()
        entry = f"all://[{address}]:{port}" if port else address  # the former is httpx's own form
    if _ORDINARY.fullmatch(entry) or _network(entry):
        return entry
    if not entry.isascii():
        entry = _in_ascii(entry)
    return entry if _is_accepted(entry) else None


def _network(entry: str) -> _Network | None:
    """Return the network, or the single address, that an entry names; none for other entries."""
    try:
        return ipaddress.ip_network(entry.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return None


def _address_in(networks: Iterable[_Network], url: str) -> str | None:
    """Return the address that a URL names if it lies in one of these networks."""
    try:
        host = urlsplit(url).hostname or ""
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return host if any(address in network for network in networks) else None


def _in_ascii(entry: str) -> str:
    """Return an entry with its international name encoded: münchen.de becomes xn--mnchen-3ya.de.

    What is not such a name stays as it is.
    """
    import httpx

    name = entry.lstrip("*.")
    host, colon, port = name.partition(":")
    try:
        encoded = httpx.URL(f"http://{host}").raw_host.decode("ascii")
    except (httpx.InvalidURL, ValueError):
        return entry
    return f"{entry[: len(entry) - len(name)]}{encoded}{colon}{port}"


def _is_accepted(entry: str) -> bool:
    """Return whether httpx accepts an entry that is a name or a URL."""
    import httpx

    pattern = entry if "://" in entry else f"all://*{entry}"
    try:
        httpx.Client(transport=httpx.BaseTransport(), mounts={pattern: None}, trust_env=False)
    except (httpx.InvalidURL, ValueError):
        return False
    return True


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


def check(url: str, *libraries: Literal["requests", "websockets"]) -> None:
    """Check that a server on another machine can be reached by the proxies of the environment.

    Args:
        url: the server's.
        libraries: what connects to it, beside httpx, without which no SOCKS proxy is kept.

    Raises:
        OrchestrationError: if the proxy for it cannot be used.
    """
    if is_here(url):
        return
    exempt(url)
    if _is_exempt(url):
        return
    parts = urlsplit(url)
    for wanted in (f"{parts.scheme}_proxy", "all_proxy"):
        for name, value in [*_removed.items(), *os.environ.items()]:
            if name.lower() == wanted and value:
                _check_one(name, value, parts.hostname or "", ("httpx", *libraries))
                return


def _check_one(name: str, value: str, host: str, libraries: Iterable[str]) -> None:
    shown = redacted(value)
    if _scheme(value) in _SOCKS:
        needed = [_SOCKS_PACKAGES[library] for library in libraries]
        missing = [package for module, package in needed if not find_spec(module)]
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
