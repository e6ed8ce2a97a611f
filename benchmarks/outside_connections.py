"""Which names do the commands look up, and which hosts do they reach outside of this machine?

    python -m benchmarks.outside_connections

Every command runs once in a new folder and with a new home, none of the variables set that ask
libraries to be quiet. A line for each: its look-ups and outside connections, which should be none.

Needs strace, which sees every process of a command and every library, whatever its language.
Without a network a look-up is still seen: as the attempt to reach a name server.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measured_runs import PATCHLINE, machine
from patchline.pipeline import local_services, quiet_libraries

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
            name = _read_asked_name(call, server)
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


def _read_asked_name(call: str, server: str) -> str:
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


_CLASSES, _IMAGES, _SIDE = ("across", "down", "rising"), 40, 32
_SETTINGS = "name: shapes\ndata: {path: photos, image_size: 32}\ntraining: {epochs: 2}\n"
_START_SECONDS = 240.0
_LINGER_SECONDS = 15
"""A library that reports does so some seconds after it was imported."""
BARE = """
import sys, time, mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
print(model.predict(pandas.DataFrame({"image": [sys.argv[2]]}))[0]["label"])
time.sleep(float(sys.argv[3]))
"""
"""What loads a package as anybody does who has MLflow and no Patchline."""


def commands_alone() -> list[list[str]]:
    """Return the commands that need no servers, in an order in which each finds what it needs."""
    return [
        ["run", "--config", "run.yaml", "--json"],
        ["run", "--config", "run.yaml", "--seed", "1", "--json"],
        ["run", "photos", "--dry-run"],
        ["predict", "shapes", "photos", "--out", "predictions.parquet"],
        ["evaluate", "shapes/1", "photos", "--json"],
        ["models"],
        ["promote", "shapes", "--version", "2", "--force", "--reason", "A trial"],
        ["rollback", "shapes"],
        ["plugins", "list"],
        ["plugins", "show", "conv", "--picture", "conv.png"],
        ["plugins", "check", "patch_embedding", "conv"],
        ["plugins", "check", "model", "simple_vit"],
        ["plugins", "check", "image_folder"],
        ["plugins", "check", "light"],
        ["plugins", "new", "model", "mine"],
    ]


def commands_with_servers() -> list[list[str]]:
    """Return the commands that need the servers of `patchline up`."""
    return [
        ["notify", "create", "here", "--webhook", "http://127.0.0.1:9/none"],
        ["notify", "list"],
        ["notify", "remove", "here"],
        ["schedule", "create", "nightly", "--cron", "0 3 * * *", "--config", "run.yaml"],
        ["schedule", "list"],
        ["schedule", "pause", "nightly"],
        ["schedule", "resume", "nightly"],
        ["schedule", "remove", "nightly"],
        ["run", "--config", "run.yaml", "--json"],
    ]


def measure_commands(folder: Path) -> Iterator[tuple[str, Recorded]]:
    """Run every command in a folder, and yield each with what was recorded."""
    _write_photos(folder / "photos")
    (folder / "run.yaml").write_text(_SETTINGS, encoding="utf-8")
    env = as_a_stranger(folder / "home")
    (folder / "home").mkdir()
    for words in commands_alone():
        yield _format_command(words), record([PATCHLINE, *words], folder, env)
    yield "mlflow.pyfunc.load_model of the package", _bare(folder, env)
    serving = Recording([PATCHLINE, "up", "--prefect-port", "14200", "--mlflow-port", "15000"],
                        folder, env)  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while local_services.find_running(folder) is None and time.monotonic() < deadline:
            time.sleep(1.0)
        for words in commands_with_servers():
            yield _format_command(words), record([PATCHLINE, *words], folder, env)
    finally:
        down = record([PATCHLINE, "down", "--now"], folder, env)
    yield "patchline up, until down", serving.ended()
    yield "patchline down --now", down


def _bare(folder: Path, env: dict[str, str]) -> Recorded:
    """Load and use a package where MLflow was asked not to report, and nothing else was."""
    package = next(folder.glob("mlruns/*/models/*/artifacts"))
    image = next(folder.glob("photos/*/*.png"))
    command: list[str | Path] = [
        sys.executable,
        "-I",
        "-c",
        BARE,
        package,
        image,
        str(_LINGER_SECONDS),
    ]
    return record(command, folder, {**env, "MLFLOW_DISABLE_TELEMETRY": "true"})


def _format_command(words: list[str]) -> str:
    return f"patchline {' '.join(words)}"


def _write_photos(root: Path) -> None:
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[0:_SIDE, 0:_SIDE]
    for name, axis in zip(_CLASSES, (rows, columns, rows + columns), strict=True):
        (root / name).mkdir(parents=True)
        for number in range(_IMAGES):
            stripes = 127 + 90 * np.sin(axis * np.pi / 4 + generator.uniform(0, 6))
            noisy = stripes[:, :, None] + generator.normal(0, 15, (_SIDE, _SIDE, 3))
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")


def main() -> int:
    """Print a line a command; the exit code is 1 if something reached out, or failed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    reason = missing_tracer()
    if reason:
        print(f"Error: {reason}", file=sys.stderr)
        return 2
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    print(machine())
    print("| command | look-ups | outside connections |\n| --- | --- | --- |", flush=True)
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        for name, found in measure_commands(Path(folder)):
            failed = f" (exit code {found.code})" if found.code else ""
            bad = bad or bool(found.code or found.look_ups or found.connections)
            cells = (", ".join(each) or "none" for each in (found.look_ups, found.connections))
            print(f"| `{name}`{failed} | {' | '.join(cells)} |", flush=True)
            if found.code:
                print(found.err[-1000:], file=sys.stderr)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
