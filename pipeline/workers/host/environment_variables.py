"""Environment variables: proxies and files of TLS, corrected for our clients; others, restored.

`http_proxy`, `https_proxy` and `all_proxy` are read by all HTTP and WebSocket libraries, each in a
way of its own. So the environment is corrected once, before a library or a process needs it:

- The addresses of this machine are added to `no_proxy` and `NO_PROXY`.
- An entry of theirs that not all libraries can read is left out, which `proxies_left_out` says.
- A variable that Prefect's client cannot use is removed. The client, httpx, prepares connections
  for all variables when it is created, and fails there even if it only talks to this machine: for
  a SOCKS proxy without more packages, and for what is not the address of a proxy.

`check_proxy` raises where such a variable would have been needed.

Certificates and keys of TLS: httpx reads them when a connection is prepared, and fails there even
if it only talks to this machine, without TLS. So a variable that names a missing or damaged file is
removed before a library or a process reads it: what is trusted then are the certificates that came
with Python's packages, never more than the user had asked for.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.redaction import redact_text

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_EXEMPTIONS = ("no_proxy", "NO_PROXY")
PROXY_VARIABLES = (*_EXEMPTIONS, *_PROXIES, *(name.upper() for name in _PROXIES))
"""The variables that `correct_proxies` may change."""
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
_SOCKS_PACKAGES = ("socksio", "socks", "python_socks")
"""What httpx, requests and websockets need for a SOCKS proxy."""
_ORDINARY = re.compile(r"[*.]*[\w-]+(\.[\w-]+)*\.?(:\d{1,5})?|\*", re.ASCII)
"""A name or an IPv4 address, maybe with a port, which all libraries accept in `no_proxy`."""
_IPV4 = 4
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_removed: dict[str, str] = {}
"""Variables that this process removed, with their values."""
_entries_left_out: dict[str, None] = {}
"""Entries that this process left out of `no_proxy`, as they were given, in their order."""


def correct_proxies() -> None:
    """Exempt this machine from proxies, in this process and in the processes that it starts."""
    for name in list(os.environ):
        if name.lower() in _PROXIES:
            _removed.pop(name, None)  # it has been set again
            if not _is_usable(os.environ[name]):
                _removed[name] = os.environ.pop(name)
    servers = (os.environ.get(name, "") for name in _SERVERS)
    exempt(*(server for server in servers if "://" in server))


def forget_proxies() -> None:
    """Forget what `correct_proxies` removed: the variables are as the user set them."""
    _removed.clear()
    _entries_left_out.clear()


def proxies_left_out() -> str:
    """Return one sentence about entries of `no_proxy` that have no effect; empty if all have one.

    Without a proxy, none is missed.
    """
    if not _entries_left_out or not any(
        os.environ.get(name) for name in PROXY_VARIABLES if name.lower() in _PROXIES
    ):
        return ""
    entries = ", ".join(repr(redact_text(entry)) for entry in _entries_left_out)
    return (
        f"no_proxy: left out {entries}, which not all HTTP libraries can read. Name hosts or "
        "domains in ASCII, addresses, or networks of IPv4: host.corp, .corp, fd00::5, 10.0.0.0/8."
    )


def exempt(*servers: str) -> None:
    """Exempt this machine, and those of these servers that run on it or in an exempt network.

    Few libraries understand networks in `no_proxy`, but all of them understand an address.

    Args:
        servers: URLs of the servers.
    """
    lower, upper = (os.environ.get(name, "") for name in _EXEMPTIONS)
    for name, given in zip(_EXEMPTIONS, (lower or upper, upper or lower), strict=True):
        if given.strip() == "*":  # no proxy at all; libraries know the asterisk only on its own
            continue
        entries = [entry for entry in re.split(r"[,\s]+", given) if entry]
        readable = {entry: _readable(entry) for entry in entries}
        _entries_left_out.update(dict.fromkeys(entry for entry in entries if not readable[entry]))
        networks = [found for entry in (*entries, *_entries_left_out) if (found := _network(entry))]
        names = [entry for entry in readable.values() if entry]
        near = [urlsplit(each).hostname or "" for each in servers if _is_near(each, networks)]
        os.environ[name] = ",".join(dict.fromkeys([*names, *_HERE, *near]))


def _readable(entry: str) -> str | None:
    """Return an entry of `no_proxy` as all libraries can read it; none if there is no such way."""
    if network := _network(entry):
        if network.num_addresses == 1:
            return str(network.network_address)
        return str(network) if network.version == _IPV4 else None
    return entry if _ORDINARY.fullmatch(entry) else None


def _network(entry: str) -> _Network | None:
    """Return the network, or the single address, that an entry names; none for other entries."""
    try:
        return ipaddress.ip_network(re.sub(r"\[(.*)](?!:)", r"\1", entry), strict=False)
    except ValueError:
        return None


def _is_near(url: str, networks: list[_Network]) -> bool:
    """Return whether a URL names this machine, or an address in one of these networks."""
    if is_here(url):
        return True
    try:
        address = ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    return any(address in network for network in networks)


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


def check_proxy(url: str) -> None:
    """Check that a server on another machine can be reached by the proxies of the environment.

    Args:
        url: the server's.

    Raises:
        OrchestrationError: if the proxy for it cannot be used.
    """
    from urllib.request import proxy_bypass

    exempt(url)
    parts = urlsplit(url)
    if is_here(url) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return
    for wanted in (f"{parts.scheme}_proxy", "all_proxy"):
        for name, value in {**_removed, **os.environ}.items():
            if name.lower() == wanted and value:
                if _is_usable(value):
                    return
                raise OrchestrationError(
                    f"{name} is {redact_text(value)!r}, which cannot be used to reach "
                    f"{parts.hostname}. Set it to http://HOST:PORT, add {parts.hostname} to "
                    "no_proxy, or run `pip install socksio PySocks python-socks` for SOCKS."
                )


def _is_usable(value: str) -> bool:
    """Return whether all libraries accept the value of a variable; an empty one means no proxy."""
    if not value:
        return True
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        known = (parts.hostname or "").strip() and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False
    socks = ("socks5", "socks5h") if all(map(find_spec, _SOCKS_PACKAGES)) else ()
    return bool(known) and parts.scheme in ("http", "https", *socks)


_CERTIFICATES, _KEY_LOG = "SSL_CERT_FILE", "SSLKEYLOGFILE"
CERTIFICATE_VARIABLES = (_CERTIFICATES, _KEY_LOG)
"""The variables that `correct_certificates` may remove."""
_files_left_out: dict[str, str] = {}
"""Why this process removed a variable, by its name."""


def correct_certificates() -> None:
    """Remove variables that no client could be created with, here and for child processes."""
    for name, fault in ((_CERTIFICATES, _fault_of_certificates), (_KEY_LOG, _fault_of_key_log)):
        if given := os.environ.get(name):
            _files_left_out.pop(name, None)  # it has been set again
            if reason := fault(Path(given)):
                _files_left_out[name] = f"{given} ({reason})"
                del os.environ[name]


def forget_certificates() -> None:
    """Forget what `correct_certificates` removed: the variables are as the user set them."""
    _files_left_out.clear()


def certificates_left_out() -> list[str]:
    """Return one sentence about each variable that was removed."""
    sentences = {
        _CERTIFICATES: "the certificates of the Python package certifi are used. Correct its path, "
        "or unset it.",
        _KEY_LOG: "no keys are logged. Correct its path, or unset it.",
    }
    return [
        f"{name} names {given}, which cannot be used: {sentences[name]}"
        for name, given in _files_left_out.items()
    ]


def _fault_of_certificates(file: Path) -> str:
    import ssl

    try:
        status = file.stat()
        _load_certificates(file, status.st_mtime_ns, status.st_size)
    except ssl.SSLError:
        return "no certificates in PEM format"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return ""


@functools.lru_cache(maxsize=1)
def _load_certificates(file: Path, _mtime_ns: int, _bytes: int) -> None:
    """Load a file of certificates, which takes a while, once until it changes."""
    import ssl

    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)


def _fault_of_key_log(file: Path) -> str:
    """Return why keys cannot be written to a file; nothing is written."""
    if file.is_dir():
        return "it is a folder"
    if not file.exists() and not file.parent.is_dir():
        return "its folder does not exist"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return "it may not be written"
    return ""


@contextmanager
def restore_variables(names: Iterable[str]) -> Iterator[dict[str, str | None]]:
    """Restore some variables when the block ends, whatever it has made of them.

    Yields:
        Their values before; None for one that is not set.
    """
    before = {name: os.environ.get(name) for name in names}
    try:
        yield before
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
