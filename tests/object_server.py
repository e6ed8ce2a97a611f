"""A server that speaks S3's protocol (moto), and a connection to it that can fail."""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.error import URLError
from uuid import uuid4

from tests.patience import patient

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
WRONG_KEY = b"<Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message></Error>"
KEYS = {"AWS_ACCESS_KEY_ID": "of-the-tests-own", "AWS_SECRET_ACCESS_KEY": "bucket-on-loopback"}


@dataclass(frozen=True)
class ObjectServer:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a command finds it."""
        return environment_for(self.url)

    def new_bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"bucket-{uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=patient(30)):
            return name


def environment_for(url: str) -> dict[str, str]:
    """Return variables with which a command finds a server."""
    return {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}


@contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """Run a server, with its log in a folder, while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ObjectServer(port)
    program = "from moto.server import main; main()"
    with (folder / "objects.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + patient(60)
        while True:
            try:
                with urllib.request.urlopen(f"{server.url}/moto-api/data.json", timeout=patient(5)):
                    break
            except (URLError, OSError):
                assert process.poll() is None, (folder / "objects.log").read_text()
                assert time.monotonic() < deadline, "the object server does not start"
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()


Fault = Literal["slow_down", "denied", "wrong_key", "hang_up", "cut_short"]


@dataclass
class FaultyConnection:
    """A proxy in front of a server that answers some requests by itself, or hangs up.

    Attributes:
        target: the port of the server.
        fault: what happens to the requests that it concerns.
        methods: these requests, by method.
        after: how many of them still pass before the fault begins.
        count: how many of them fail before all pass again.
        seen: the first line of each request.
        received: bytes of the answers of the server, with their heads.
        rate: bytes a second of an answer or of the body of a request; 0 is as fast as possible.
        hangs_up_after: so many bytes of an answer pass.
        stalls_after: so many bytes of answers and of bodies of requests pass in all.
        drops: names of headers, in lower case, that do not pass: a server that ignores them.
        most_at_once: the largest number of requests with a body so far at the same time.
    """

    target: int
    port: int = 0
    fault: Fault = "slow_down"
    methods: tuple[str, ...] = ()
    after: int = 0
    count: int = 1 << 30
    seen: list[str] = field(default_factory=list)
    received: int = 0
    rate: float = 0.0
    hangs_up_after: int = 0
    stalls_after: int = 0
    most_at_once: int = 0
    drops: tuple[bytes, ...] = ()
    _passed: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ends: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a command uses this connection."""
        return environment_for(f"http://127.0.0.1:{self.port}")

    def answer(self, request: bytes, *, is_cut: bool) -> Iterator[bytes]:
        """Yield the pieces of the server's answer; if it is cut, only a part of it."""
        with socket.create_connection(("127.0.0.1", self.target)) as upstream:
            upstream.sendall(request)
            passed = 0
            while piece := upstream.recv(1 << 16):
                self.received += len(piece)
                self._slow_down(len(piece))
                yield piece[: len(piece) * 3 // 4] if is_cut else piece
                passed += len(piece)
                if is_cut or 0 < self.hangs_up_after < passed:
                    return

    def body(self, opened: io.BufferedIOBase, length: int) -> bytes:
        """Return the body of a request, after receiving it at the rate of the connection."""
        if not length:
            return b""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            pieces, passed = list[bytes](), 0
            while passed < length and (piece := opened.read(min(1 << 16, length - passed))):
                pieces.append(piece)
                passed += len(piece)
                self._slow_down(len(piece))
            return b"".join(pieces)
        finally:
            with self._lock:
                self._at_once -= 1

    def _slow_down(self, size: int) -> None:
        self._passed += size
        if self.rate:
            self._ends.wait(size / self.rate)
        if 0 < self.stalls_after < self._passed:
            self._ends.wait()

    def end(self) -> None:
        """Let go of what waits."""
        self._ends.set()

    def breaks(self, line: str) -> bool:
        """Return whether the request with this first line fails."""
        self.seen.append(line)
        if not line.startswith(self.methods) or not self.methods:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.count -= 1
        return self.count >= 0


_ANSWERS = {
    "slow_down": (b"503 Slow Down", SLOW_DOWN),
    "denied": (b"403 Forbidden", DENIED),
    "wrong_key": (b"403 Forbidden", WRONG_KEY),
}


@contextmanager
def faulty_connection(server: ObjectServer) -> Iterator[FaultyConnection]:
    """Run a proxy in front of a server while the block runs; without methods all requests pass."""
    connection = FaultyConnection(server.port)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = self.rfile.readline()
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                if not line.lower().startswith((b"connection:", b"expect:", *connection.drops)):
                    head += line
            length = 0
            for line in head.splitlines():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = connection.body(self.rfile, length)
            is_broken = connection.breaks(head.split(b"\r\n")[0].decode())
            if is_broken and connection.fault != "cut_short":
                if connection.fault == "hang_up":
                    return
                status, answer = _ANSWERS[connection.fault]
                self.wfile.write(
                    b"HTTP/1.1 %b\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n%b" % (status, len(answer), answer)
                )
                return
            request = head + b"Connection: close\r\n\r\n" + body
            self.wfile.writelines(connection.answer(request, is_cut=is_broken))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: a client that is killed hangs up."""

    with Server(("127.0.0.1", 0), Handler) as proxy:
        connection.port = proxy.server_address[1]
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield connection
        finally:
            connection.end()
            proxy.shutdown()
            with contextlib.suppress(RuntimeError):
                thread.join(5)
