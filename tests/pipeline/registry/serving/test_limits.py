"""Load, slow and broken clients, and the end of the server: a real server on real sockets."""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.conftest import encoded
from tests.patience import patient, until
from tests.pipeline.registry.serving.served import Registry, Serving, metric, png, serving
from tests.pipeline.registry.serving.test_predict import form


def big_png(side: int) -> bytes:
    """Return a file of few bytes and many pixels."""
    return encoded(np.zeros((side, side), np.uint8), compress_level=1)


def head(server: Serving, body: bytes = b"", *lines: str) -> bytes:
    """Return the head of a request with a body."""
    text = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: image/png\r\n"
    own = lines or (f"Content-Length: {len(body)}",)
    return (text + "".join(f"{line}\r\n" for line in own) + "\r\n").encode() + body


def connected(server: Serving) -> socket.socket:
    """Return a connection with the server."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=patient(60))


def everything(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    return received


@pytest.fixture(scope="module")
def slow_server(registry: Registry) -> Iterator[Serving]:
    """Return a server with one thread and a long patience."""
    with serving(registry.folder, "--threads", "1", "--time-limit", "600") as server:
        yield server


def test_a_full_queue_is_said_with_the_time_to_try_again(registry: Registry) -> None:
    """Beyond the queue's length, requests get 503 and Retry-After, and the others their answers.

    A body beyond the maximum is refused, whether its length is stated, unpacked or in chunks.
    """
    slow, limits = big_png(2500), ("--max-queue", "2", "--threads", "1", "--max-request-mib", "1")
    with serving(registry.folder, *limits) as server, ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: server.predict(slow), range(12)))
        assert {reply.status for reply in replies} == {200, 503}
        for reply in replies:
            if reply.status == 503:
                assert int(reply.headers["retry-after"]) >= 1
                assert "queue is full" in reply.json["error"]
        large = server.predict(bytes(3 << 20))
        assert (large.status, "maximum of 1 MiB" in large.json["error"]) == (413, True)
        long = server.ask_json("/predict", " " * (1 << 19))
        assert (long.status, "maximum of 0.25 MiB" in long.json["error"]) == (413, True)
        bomb = gzip.compress(bytes(5 << 20))
        assert server.predict(bomb, {"content-encoding": "gzip"}).status == 413
        with connected(server) as connection:
            connection.sendall(head(server, b"", "Transfer-Encoding: chunked"))
            for _ in range(3):
                connection.sendall(b"80000\r\n" + bytes(0x80000) + b"\r\n")
            connection.sendall(b"0\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 413")
        assert server.predict(png(1)).status == 200
        os.kill(server.process.pid, signal.SIGINT)  # Ctrl-C in the terminal ends it
        assert server.process.wait(patient(60)) == 0


def test_a_time_limit_gives_a_request_up(registry: Registry) -> None:
    """A request that takes too long gets 503, and the next one is answered.

    What is still decoded when the server is stopped does not make it fail. A connection on which
    nothing more is asked is closed after its own limit.
    """
    with serving(registry.folder, "--time-limit", "0.01", "--idle-limit", "0.5") as server:
        with connected(server) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert everything(connection).startswith(b"HTTP/1.1 200")
        replies = [server.predict(big_png(4000)) for _ in range(2)]
        assert [reply.status for reply in replies] == [503, 503]
        assert "longer than 0.01 s" in replies[0].json["error"]
        assert server.ask("GET", "/healthz").status == 200
        server.predict(big_png(4000))
        os.kill(server.process.pid, signal.SIGINT)
        assert server.process.wait(patient(60)) == 0


def test_large_images_do_not_delay_small_ones(slow_server: Serving) -> None:
    """While images of more than 16 megapixels are decoded, small ones are answered."""
    large = big_png(4200)
    with ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        slow = [pool.submit(slow_server.predict, large) for _ in range(2)]
        times: list[float] = []
        while not all(each.done() for each in slow):
            sent = time.monotonic()
            assert slow_server.predict(png(1)).status == 200
            times.append(time.monotonic() - sent)
        assert np.median(times) < (time.monotonic() - began) / 4
    assert {each.result().status for each in slow} == {200}


def test_clients_that_leave_or_speak_no_http_cost_nothing(server: Serving) -> None:
    """A client that closes within a request, or sends nonsense, leaves no error behind."""
    before = server.log.read_text()
    for sent in (
        b"",
        head(server)[:40],
        head(server, b"", "Content-Length: 1000") + png(1)[:20],
        b"\x00\xff nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        b"\r\n" * 9,
    ):
        with connected(server) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            received = everything(connection)
        assert not received or received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert server.predict(png(1)).status == 200
    assert "Traceback" not in server.log.read_text().removeprefix(before)


def test_what_a_client_asked_for_that_has_gone_is_not_computed(slow_server: Serving) -> None:
    """Clients that close while they wait leave nothing to decode or to compute behind."""
    clients, images = 4, 30
    body, kind = form([("large.png", big_png(3000))] * images)
    lines = f"Content-Length: {len(body)}", f"Content-Type: {kind['content-type']}"
    before = metrics(slow_server)

    def risen(name: str) -> float:
        return metric(metrics(slow_server), name) - metric(before, name)

    def wait_for_pending(enough: Callable[[float], bool]) -> None:
        until(lambda: enough(risen("patchline_pending_images")), "it did not come", seconds=30)

    waiting = [connected(slow_server) for _ in range(clients)]
    for connection in waiting:
        top = head(slow_server, b"", *lines).replace(b"Content-Type: image/png\r\n", b"")
        connection.sendall(top + body)
    wait_for_pending(lambda pending: pending > images)
    for connection in waiting:
        connection.close()
    wait_for_pending(lambda pending: pending == 0)
    assert risen("patchline_decode_seconds_count") < clients * images / 2
    assert risen("patchline_batch_images_sum") < clients * images / 2
    assert 'patchline_refused_requests_total{reason="client gone"} 4.0' in metrics(slow_server)
    assert slow_server.predict(png(1)).status == 200


def metrics(server: Serving) -> str:
    """Return what `/metrics` tells."""
    return server.ask("GET", "/metrics").body.decode()


def test_a_half_closed_connection_gets_its_answer(server: Serving) -> None:
    """A client that closes its half, as `nc -N`, is answered in one piece, and then closed."""
    with connected(server) as connection:
        connection.sendall(head(server, png(1)))
        connection.shutdown(socket.SHUT_WR)
        received = connection.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 200")
        assert b'"version": "1"' in received
        assert not everything(connection)


@pytest.mark.slow
def test_a_head_that_never_ends_is_cut_off(server: Serving) -> None:
    """A client that sends a byte a second gets no more than the time of a head."""
    with connected(server) as connection:
        began, sent = time.monotonic(), iter(head(server) * 100)
        while not select.select([connection], [], [], 0.5)[0]:  # until the server says something
            connection.sendall(bytes([next(sent)]))
            assert time.monotonic() - began < patient(60), "the connection was kept"
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert time.monotonic() - began > 5


def test_sigterm_answers_everything(registry: Registry) -> None:
    """Every request that was sent is answered, and the exit code is 0."""
    lost: list[Exception] = []
    answered: list[bytes] = []

    def ask(server: Serving) -> None:
        """Ask on one connection until the server says that it closes it."""
        with connected(server) as connection, connection.makefile("rb") as stream:
            while True:
                try:
                    connection.sendall(head(server, png(1)))
                    lines = [stream.readline()]
                    while lines[-1] not in (b"\r\n", b""):
                        lines.append(stream.readline())
                    if not lines[0].startswith(b"HTTP/1.1 200"):
                        raise ConnectionError(lines[0])
                    [length] = [line for line in lines if line.startswith(b"content-length")]
                    answered.append(stream.read(int(length.split()[1])))
                except OSError as error:
                    lost.append(error)
                    return
                if b"connection: close\r\n" in lines:
                    return

    with serving(registry.folder) as server:
        threads = [threading.Thread(target=ask, args=(server,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 40, "nothing was answered")
        before = len(answered)
        assert server.stop() == 0

        for thread in threads:
            thread.join(patient(30))
        assert not lost
        assert len(answered) >= before + 8
        assert "Stopping" in server.log.read_text()
