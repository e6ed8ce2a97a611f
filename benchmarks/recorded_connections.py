"""Run a command under strace and read which names it looked up and which hosts it talked to.

strace sees every process of a command and every library, whatever its language. Without a network
a look-up is still seen: as the attempt to reach a name server.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline import quiet_libraries

_CALLS = "connect,sendto,sendmsg,sendmmsg"
_ADDRESS = re.compile(
    r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|inet_pton\(AF_INET6, )"
    r'"([^"]*)"'
)
_SOCKET = re.compile(r'sa_family=AF_UNIX, sun_path="([^"]*)"')
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})+)"')
_NAME_PORTS = (53, 853, 5353)
"""DNS, DNS over TLS, multicast DNS."""
_RESOLVERS = ("/run/systemd/resolve/io.systemd.Resolve", "/run/avahi-daemon/socket")
_CACHING_RESOLVER = "nscd/socket"
_HOST_REQUESTS = (4, 5, 6, 7, 13, 14)
"""Kinds of requests to the caching resolver that are about hosts; others are about users."""
_HEADER = 12
"""Bytes before the first name of a DNS message."""


@dataclass(frozen=True)
class Recorded:
    """How a command ended, and whom it asked or reached outside of this machine."""

    code: int
    out: str
    err: str
    look_ups: tuple[str, ...]
    """Names, or the name server that was asked where the name cannot be read."""
    connections: tuple[str, ...]
    """Addresses with their ports that are not loopback, name servers aside."""


@cache
def missing_tracer() -> str:
    """Return why commands cannot be recorded here; empty if they can."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    tried = subprocess.run([strace, "-qq", "-e", "trace=connect", "true"], capture_output=True)  # noqa: PLW1510 - its code is the answer
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.decode()}"


def as_a_stranger(home: Path) -> dict[str, str]:
    """Return this environment without anything that asks libraries to be quiet, and a new home."""
    quiet = set(quiet_libraries.NAMES)
    return {**{k: v for k, v in os.environ.items() if k not in quiet}, "HOME": str(home)}


class Recording:
    """A command that runs under strace, with all the processes that it starts."""

    def __init__(self, command: Sequence[str | Path], folder: Path, env: dict[str, str]) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="patchline-trace-"))
        self._trace = self._scratch / "calls.txt"
        with (self._scratch / "out").open("wb") as out, (self._scratch / "err").open("wb") as err:
            self.process = subprocess.Popen(
                ["strace", "--seccomp-bpf", "-f", "-qq", "-xx", "-s", "300", "-e",
                 f"trace={_CALLS}", "-o", str(self._trace), *map(str, command)],
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    def ended(self, seconds: float = 900.0) -> Recorded:
        """Wait for the command and everything that it started, and return what was recorded."""
        try:
            code = self.process.wait(seconds)
            look_ups, connections = read_trace(self._trace.read_text(encoding="utf-8"))
            out, err = (
                (self._scratch / name).read_text("utf-8", "replace") for name in ("out", "err")
            )
            return Recorded(code, out, err, look_ups, connections)
        finally:
            self.process.kill()
            shutil.rmtree(self._scratch, ignore_errors=True)


def record(command: Sequence[str | Path], folder: Path, env: dict[str, str]) -> Recorded:
    """Run a command to its end and return what was recorded."""
    return Recording(command, folder, env).ended()


def read_trace(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the look-ups and the outside connections in the output of `strace -f -xx`."""
    look_ups: dict[str, None] = {}
    connections: dict[str, None] = {}
    asking: dict[str, str] = {}  # by thread: the name server that it has just turned to
    for line in text.splitlines():
        thread, _, call = line.partition(" ")
        for address in _name_servers(call):
            asking[thread] = address
        server = asking.get(thread, "")
        if server and "connect(" not in call:
            name = _asked_name(call, server)
            if name:
                look_ups[name] = None
                del asking[thread]
        connections |= dict.fromkeys(_outside(call))
    look_ups |= {
        f"something, of {server}": None
        for server in asking.values()
        if not server.endswith(_CACHING_RESOLVER)  # it is asked about users, too
    }
    return tuple(look_ups), tuple(connections)


def _name_servers(call: str) -> list[str]:
    """Return the name servers that a call turns to."""
    found = [
        f"{_text(address)}:{port}"
        for port, address in _ADDRESS.findall(call)
        if int(port) in _NAME_PORTS
    ]
    sockets = [_text(path) for path in _SOCKET.findall(call)]
    there = "ENOENT" not in call
    resolvers = (*_RESOLVERS, _CACHING_RESOLVER)
    return found + [path for path in sockets if there and path.endswith(resolvers)]


def _outside(call: str) -> list[str]:
    """Return the addresses of a call that are not of this machine."""
    found = []
    for port, quoted in _ADDRESS.findall(call):
        address = ipaddress.ip_address(_text(quoted))
        mapped = getattr(address, "ipv4_mapped", None) or address
        here = mapped.is_loopback or mapped.is_unspecified
        if not here and int(port) not in _NAME_PORTS:
            found.append(f"{mapped}:{port}")
    return found


def _asked_name(call: str, server: str) -> str:
    """Return the name that a message to a name server asks for; empty if it holds none."""
    content = next(iter(_TEXT.findall(_ADDRESS.sub("", call))), None)
    if content is None:
        return ""
    message = _bytes(content)
    if server.endswith(_CACHING_RESOLVER):
        of_hosts = len(message) > 4 and message[4] in _HOST_REQUESTS  # noqa: PLR2004 - its second number
        return f"something, of {server}" if of_hosts else ""
    if server.startswith("/"):
        return f"something, of {server}"
    labels, rest = [], message[_HEADER:]
    while rest and 0 < rest[0] < len(rest):
        labels.append(rest[1 : 1 + rest[0]].decode("ascii", "replace"))
        rest = rest[1 + rest[0] :]
    return ".".join(labels)


def _bytes(quoted: str) -> bytes:
    return bytes.fromhex(quoted.replace("\\x", ""))


def _text(quoted: str) -> str:
    """Return a quoted text, whether strace wrote it in hexadecimal or not."""
    return _bytes(quoted).split(b"\0")[0].decode() if "\\x" in quoted else quoted
