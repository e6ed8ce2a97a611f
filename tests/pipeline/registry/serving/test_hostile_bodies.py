"""Bodies that become large, or take long, beside what they weigh: a real server on real sockets."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.registry.serving.interfaces import answering
from patchline.pipeline.registry.serving.interfaces.answering import json_object
from patchline.pipeline.web.request_body import Refusal
from tests.patience import patient, until
from tests.pipeline.registry.serving.served import Reply, Serving, png
from tests.pipeline.registry.serving.test_limits import connected, everything, head
from tests.pipeline.registry.serving.test_open_inference import INFER, LENGTH, binary

_MOST = 1 << 22
"""Bytes of a body; the most JSON that a server takes is four times as much."""
_JSON = {"content-type": "application/json"}
_DIGITS = 5000
_GROWTH_MIB = 100
"""What one request after the other may add to the memory of a server."""


def peak_mib(server: Serving) -> float:
    """Return the most memory that the processes of a server have held."""
    processes = psutil.Process(server.process.pid)
    pids = [server.process.pid, *(each.pid for each in processes.children(recursive=True))]
    lines = [
        line
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return sum(int(line.split()[1]) for line in lines) / 1024


def tensor(data: str, shape: str = "[1]", datatype: str = "UINT8", more: str = "") -> str:
    """Return a request for inference; `data`, `shape` and `more` are JSON."""
    entry = f'"name":"image","datatype":"{datatype}","shape":{shape},"data":{data}'
    return f'{{"inputs":[{{{entry}}}]{more}}}'


def photo(more: str, path: str = INFER) -> str:
    """Return a good request, with more keys."""
    image = base64.b64encode(png(1)).decode()
    if path == INFER:
        return tensor(f'["{image}"]', "[1]", "BYTES", f",{more}")
    return f'{{"image":"{image}",{more}}}'


def filled(unit: str, length: int = _MOST - 1000) -> str:
    """Return a list of as many equal values as fit so many bytes."""
    return f"[{','.join([unit] * (length // (len(unit) + 1)))}]"


_DEEP, _LONG = "[" * 400 + "]" * 400, "a" * (_MOST - 1000)
_PREDICT = "/predict"
IN_JSON: dict[str, tuple[str, Callable[[], str]]] = {
    "texts": (INFER, lambda: tensor('["' + "a" * 700_000 + '"' + ',""' * 300 + "]", "[301]")),
    "truth values": (INFER, lambda: tensor("[true,true,true]", "[1,1,3]")),
    "deep data": (INFER, lambda: tensor(_DEEP)),
    "a huge number": (INFER, lambda: tensor("[" + "9" * 600 + "]")),
    "numbers": (INFER, lambda: tensor(filled("999"), "[1,2,3]")),
    "fractions": (INFER, lambda: tensor(filled("0.1", 100_000), "[1,2,3]")),
    "lists": (_PREDICT, lambda: filled("[]")),
    "keys": (_PREDICT, lambda: json.dumps(dict.fromkeys(map(str, range(200_000)), 0))),
    "an emoji": (_PREDICT, lambda: '{"image":"😀' + _LONG + '"}'),
    "depth": (_PREDICT, lambda: "[" * 100_000),
    "a long id": (INFER, lambda: photo('"id":"' + "\\n" * 500_000 + '"')),
    "a deep id": (INFER, lambda: photo(f'"id":{_DEEP}')),
    "axes of digits": (INFER, lambda: tensor("[1]", "[" + "9" * 600 + "," + "9" * 600 + "]")),
    "an endless axis": (INFER, lambda: tensor("[1]", "[1e999]")),
    "coverage of more digits": (_PREDICT, lambda: photo('"coverage":' + "1" * 5000, _PREDICT)),
    "no number as coverage": (_PREDICT, lambda: photo('"coverage":NaN', _PREDICT)),
}


@pytest.mark.parametrize("name", IN_JSON)
def test_json_is_refused_by_what_it_becomes(server: Serving, name: str) -> None:
    """The answer is one sentence with a status of the client's, and the server stays small."""
    path, body = IN_JSON[name]
    before = peak_mib(server)
    reply = server.ask("POST", path, body().encode(), _JSON)
    assert 400 <= reply.status < 500, reply.body
    assert reply.json["error"].endswith(".")
    assert len(reply.body) < 1000
    assert peak_mib(server) < before + _GROWTH_MIB


@pytest.mark.parametrize(
    ("raw", "shape", "datatype"),
    [
        (bytes(4 << 20), [4 << 20, 1], "UINT8"),
        (bytes(8 << 20), [2 << 20], "BYTES"),
        (b"\2\0\0\0ab" * (1 << 20), [1], "BYTES"),
        (b"", [10**30, 10**30], "BYTES"),
    ],
)
def test_a_tensor_is_refused_by_the_number_of_its_images(
    server: Serving, raw: bytes, shape: Sequence[int], datatype: str
) -> None:
    """Before an object is made for each of its rows or elements."""
    before = peak_mib(server)
    reply = binary(server, raw, list(shape), datatype)
    assert reply.status == 400, reply.body
    assert peak_mib(server) < before + _GROWTH_MIB


def test_json_is_limited_whatever_it_is_called(server: Serving) -> None:
    """JSON under another content type, or before binary tensors, is no larger."""
    before, lists = peak_mib(server), filled("[]").encode()
    assert server.ask("POST", INFER, lists, {"content-type": "text/plain"}).status == 413
    for length in (len(lists), "9" * _DIGITS):
        headers = {LENGTH: str(length), "content-type": "application/octet-stream"}
        reply = server.ask("POST", INFER, lists, headers)
        assert reply.status == 400
        assert "Content-Length" in reply.json["error"]
    assert peak_mib(server) < before + _GROWTH_MIB


@pytest.mark.parametrize("length", ["9" * _DIGITS, "-1"])
def test_a_length_of_many_digits_is_refused(server: Serving, length: str) -> None:
    """The length of the body is no number, or too large."""
    with connected(server) as connection:
        connection.sendall(head(server, b"", f"Content-Length: {length}"))
        assert everything(connection).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


def test_very_many_small_chunks_are_refused(server: Serving) -> None:
    """A body in chunks of a byte takes far longer to read than one of the same size in few."""
    image = png(1)
    parts = [image[start : start + 4] for start in range(0, len(image), 4)]
    few = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    many, named = b"1\r\na\r\n" * 20_000, b"0002;name=value\r\nab\r\n" * 20_000
    for chunks, status in ((many, b"400"), (named, b"400"), (few, b"200")):
        with connected(server) as connection:
            top = head(server, b"", "Transfer-Encoding: chunked")
            connection.sendall(top + chunks + b"0\r\n\r\n")
            assert connection.recv(1 << 12).startswith(b"HTTP/1.1 " + status)


def test_a_compressed_body_is_read_in_parts(server: Serving) -> None:
    """A bomb takes no more memory than the largest body; a whole body is read as it was."""
    before, coding = peak_mib(server), {"content-encoding": "gzip"}
    bomb = gzip.compress(bytes(1 << 27))
    assert server.predict(bomb, coding).status == 413
    assert server.predict(gzip.compress(png(1))[:-9], coding).status == 400
    lines = ("Transfer-Encoding: chunked", "Content-Encoding: gzip")
    part = bytes(1 << 20)
    chunks = [gzip.compress(b"x"), *[part] * 65]
    with connected(server) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head(server, b"", *lines))
        for chunk in chunks:
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        assert connection.recv(1 << 12).startswith(b"HTTP/1.1 400")
    image = png(1, side=2000) + bytes(3 << 20)
    plain, packed = server.predict(image), server.predict(gzip.compress(image), coding)
    assert (plain.status, plain.json) == (packed.status, packed.json)
    assert peak_mib(server) < before + _GROWTH_MIB


def test_health_is_answered_under_hostile_bodies(server: Serving) -> None:
    """Twelve connections with bodies that become large do not hold the probe of a cluster up."""
    asked: list[Future[Reply]] = []
    with ThreadPoolExecutor(12) as pool:
        for name in ("lists", "numbers", "an emoji"):
            path, body = IN_JSON[name]
            content = body().encode()
            asked += [pool.submit(server.ask, "POST", path, content, _JSON) for _ in range(4)]
        slowest = 0.0
        while not all(each.done() for each in asked):
            began = time.monotonic()
            assert server.ask("GET", "/healthz").status == 200
            slowest = max(slowest, time.monotonic() - began)
    assert {each.result().status for each in asked} <= {400, 413, 503}
    assert slowest < patient(5)
    until(lambda: server.predict(png(1)).status == 200, "nothing is answered any more")


@pytest.mark.parametrize(("unit", "values"), [('"éé"', 3), ("[]", 4), ('{"a":0}', 11)])
def test_json_that_is_parsed_is_small(
    unit: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values take at most 48 bytes each, as many as allowed are parsed, and a tenth more is not."""
    monkeypatch.setattr(answering, "_MOST_VALUES", 30_000)

    def body(number: int) -> bytes:
        return f'{{"x":[{",".join([unit] * (number // values))}]}}'.encode()

    large = body(20_000)
    tracemalloc.start()
    try:
        json_object(large)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 960_000 + 4 * len(large)
    if values == 4:
        json_object(body(29_900))
    with pytest.raises(Refusal, match="more than 30,000 values"):
        json_object(body(33_000))
