"""What `patchline serve` costs, how it compares, and what load does to it.

    python -m benchmarks.serving cost [ROUNDS]        processor time beside a bare loop, p99
    python -m benchmarks.serving peers [PYTHON]       requests/s beside MLflow's server and LitServe
    python -m benchmarks.serving switches [NUMBER]    versions that change under load
    python -m benchmarks.serving sigterm [ROUNDS]     requests that are lost when the server stops
    python -m benchmarks.serving hostile [MINUTES] [--load SHARE]
                                                      a fifth of the requests damaged, slow or huge
    python -m benchmarks.serving bodies [SECONDS] [--limit MIB]
                                                      small bodies that become large ones
    python -m benchmarks.serving start [ROUNDS]       from the command to the first answer

A small ViT with random weights is registered in a SQLite store and asked for JPEG files of 200x200
pixels on 16 connections. The clients are one process of this program, which shares the cores.
PYTHON is that of an environment with litserve, numpy, onnxruntime and opencv-python-headless.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gzip
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import psutil

from benchmarks.measured_runs import PATCHLINE, machine
from benchmarks.results import Value, record
from patchline.pipeline import quiet_libraries
from tests.free_ports import free_port

NAME, CONNECTIONS, PHOTOS, SIDE = "benchmark", 16, 64, 200
_SECONDS = 6.0
_REST_SECONDS = 3.0
"""After the load, until the server has returned the memory that it no longer uses."""


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, default in (
        ("cost", cost, 3),
        ("switches", switches, 200),
        ("sigterm", sigterm, 10),
        ("start", start, 5),
    ):
        command = commands.add_parser(name)
        command.add_argument("number", nargs="?", type=float, default=default)
        command.set_defaults(run=lambda folder, options, run=run: run(folder, options.number))
    attacked = commands.add_parser("hostile")
    attacked.add_argument("number", nargs="?", type=float, default=20)
    attacked.add_argument("--load", type=float, default=0.3, help="Share of the highest rate.")
    attacked.set_defaults(run=lambda folder, options: hostile(folder, options.number, options.load))
    grown = commands.add_parser("bodies")
    grown.add_argument("number", nargs="?", type=float, default=6)
    grown.add_argument("--limit", type=int, default=800, help="MiB at which the server is killed.")
    grown.add_argument("--only", default="", help="Kind of body, instead of all.")
    grown.set_defaults(
        run=lambda folder, options: bodies(folder, options.number, options.limit, options.only)
    )
    beside = commands.add_parser("peers")
    beside.add_argument("python", nargs="?", default="")
    beside.set_defaults(run=lambda folder, options: peers(folder, options.python))
    options = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        folder = Path(temporary)
        for version in (1, 2):
            _register(folder, version)
        options.run(folder, options)


# -- what is served ----------------------------------------------------------------------------


def _register(folder: Path, number: int) -> None:
    """Register a version whose classes are named after it."""
    from benchmarks.batch_prediction import small_model
    from patchline.pipeline.workspace.tracking.tracking_store import client

    artifacts = folder / f"package-{number}" / "artifacts"
    artifacts.mkdir(parents=True)
    small_model(artifacts, "ti")
    file = artifacts / "model.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["classes"] = [f"{number}: {name}" for name in content["classes"]]
    file.write_text(json.dumps(content), encoding="utf-8")
    store = client()
    if number == 1:
        store.create_registered_model(NAME)
    store.create_model_version(NAME, source=str(artifacts.parent))
    if number == 1:
        store.set_registered_model_alias(NAME, "champion", "1")


def photos() -> list[bytes]:
    """Return JPEG files with structure at several sizes."""
    generator = np.random.default_rng(0)
    files = []
    for _ in range(PHOTOS):
        photo = np.full((SIDE, SIDE, 3), 120, np.float32)
        for cells, contrast in ((6, 60), (24, 40), (94, 25)):
            noise = generator.normal(0, contrast, (cells, cells, 3)).astype(np.float32)
            photo += cv2.resize(noise, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        files.append(cv2.imencode(".jpg", np.clip(photo, 0, 255).astype(np.uint8))[1].tobytes())
    return files


@contextmanager
def _serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [str(PATCHLINE), "serve", NAME, "--port", "0", "--json", *arguments]
    with Path("serve.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        yield process, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children."""
    process = psutil.Process(pid)
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


# -- clients -----------------------------------------------------------------------------------


@dataclass
class Load:
    """What clients have seen."""

    seconds: list[float] = field(default_factory=list)
    """Of each request that was answered with 200."""
    statuses: dict[int, int] = field(default_factory=dict)
    mixed: int = 0
    """Answers whose class is of another version than the one that they name."""
    lost: int = 0
    """Requests that were sent whole and not answered."""
    refused: int = 0
    """Connections that were not accepted."""

    def note(self, status: int, began: float) -> None:
        """Count an answer."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:  # noqa: PLR2004 - OK
            self.seconds.append(time.perf_counter() - began)

    def percentile(self, share: float) -> float:
        """Return a percentile of the seconds, in milliseconds."""
        return 1000 * float(np.quantile(self.seconds, share)) if self.seconds else float("nan")


def _request(path: str, body: bytes, kind: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{{port}}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return the status, the body, and whether the connection stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100 "):
        head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    named = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    body = await reader.readexactly(int(named.get("content-length", 0)))
    return int(lines[0].split()[1]), body, named.get("connection") != "close"


async def _client(port: int, requests: list[bytes], load: Load, ended: Callable[[], bool]) -> None:
    """Ask on one connection, the next request after each answer; connect again when it closes."""
    generator = random.Random(len(load.seconds))  # noqa: S311 - not for secrets
    writer: asyncio.StreamWriter | None = None
    while not ended():
        if writer is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                load.refused += 1
                return
        began = time.perf_counter()
        try:
            writer.write(generator.choice(requests))
            await writer.drain()
            status, body, stays = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            load.lost += 1
            writer = None
            continue
        load.note(status, began)
        _check_version(load, status, body)
        if not stays:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


def _check_version(load: Load, status: int, body: bytes) -> None:
    content = json.loads(body) if status == 200 and body.startswith(b'{"label"') else {}  # noqa: PLR2004 - OK
    label = content.get("label", "")
    if ": " in label and label.partition(":")[0] != content["version"]:
        load.mixed += 1


async def _run_closed_loop(
    port: int, requests: list[bytes], seconds: float, connections: int = CONNECTIONS
) -> Load:
    load, end = Load(), time.monotonic() + seconds
    named = [each.replace(b"{port}", str(port).encode(), 1) for each in requests]
    clients = (
        _client(port, named, load, lambda: time.monotonic() > end) for _ in range(connections)
    )
    await asyncio.gather(*clients)
    return load


async def _open_loop(port: int, requests: list[bytes], rate: float, seconds: float) -> Load:
    """Send requests at random times, whether earlier ones are answered or not.

    The seconds of an answer count from when its request was due, so that a client that is late
    because the processor is busy shortens none of them.
    """
    load, generator = Load(), random.Random(1)  # noqa: S311 - not for secrets
    named = [each.replace(b"{port}", str(port).encode(), 1) for each in requests]
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(due: float) -> None:
        began = due - time.monotonic() + time.perf_counter()
        reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        writer.write(generator.choice(named))
        status, _, _ = await _answer(reader)
        load.note(status, began)
        free.append((reader, writer))

    asked, end, due = [], time.monotonic() + seconds, time.monotonic()
    while due < end:
        due += generator.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.append(asyncio.ensure_future(ask(due)))
    await asyncio.gather(*asked, return_exceptions=True)
    return load


def _raw() -> list[bytes]:
    return [_request("/predict", photo, "image/jpeg") for photo in photos()]


# -- the figures -------------------------------------------------------------------------------


def cost(folder: Path, rounds: float) -> None:
    """Print processor time for an image, in a bare loop and in the server, in turn."""
    ratios = []
    with _serving() as (process, port):
        asyncio.run(_run_closed_loop(port, _raw(), 2.0))
        for number in range(int(rounds)):
            bare, rate = _bare_loop(folder)
            before = _processor_seconds(process.pid)
            load = asyncio.run(_run_closed_loop(port, _raw(), _SECONDS))
            answered = len(load.seconds)
            each = (_processor_seconds(process.pid) - before) / answered
            ratios.append(each / bare)
            print(
                f"round {number}: bare loop {1000 * bare:.2f} ms of processor time an image "
                f"({rate:.0f} images/s); server {1000 * each:.2f} ms a request, "
                f"{answered / _SECONDS:.0f} requests/s, p50 {load.percentile(0.5):.0f} ms, p99 "
                f"{load.percentile(0.99):.0f} ms; ratio {ratios[-1]:.2f}",
                flush=True,
            )
        rate = 0.8 * answered / _SECONDS
        load = asyncio.run(_open_loop(port, _raw(), rate, 2 * _SECONDS))
        ratio = load.percentile(0.99) / load.percentile(0.5)
        print(
            f"at 80% of the rate ({rate:.0f}/s, at random times): p50 {load.percentile(0.5):.1f} "
            f"ms, p99 {load.percentile(0.99):.1f} ms, ratio {ratio:.1f}, answers {load.statuses}"
        )
    record("serving_cost", Value.median("processor time, server / bare loop", ratios, ""))


def _bare_loop(folder: Path) -> tuple[float, float]:
    """Return processor seconds for an image, and images/s, of decoding and computing alone."""
    command = [sys.executable, "-c", _BARE, str(folder / "package-1" / "artifacts")]
    done = subprocess.run(
        command, input=json.dumps([base64.b64encode(p).decode() for p in photos()]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    each, rate = json.loads(done.stdout)
    return float(each), float(rate)


_BARE = f"""
import base64, json, sys, threading, time
from pathlib import Path
from patchline.pipeline.packaging.packaged_model import PackagedModel
folder = Path(sys.argv[1])
images = [base64.b64decode(text) for text in json.load(sys.stdin)]
model = PackagedModel(folder / "model.onnx", folder / "model.json", 1)
counts = [0, 0]
def loop(worker, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pixels = model.pixels(images[counts[worker] % len(images)], paths=False)
        model.outputs(pixels[None])
        counts[worker] += 1
def both(seconds):
    threads = [threading.Thread(target=loop, args=(each, seconds)) for each in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
both(1.0)
counts[:] = [0, 0]
began = time.process_time()
both({_SECONDS})
print(json.dumps([(time.process_time() - began) / sum(counts), sum(counts) / {_SECONDS}]))
"""


def peers(folder: Path, python: str) -> None:
    """Print requests/s of each server with two threads that compute, in turn."""
    records = [
        {"dataframe_records": [{"image": base64.b64encode(photo).decode()}]} for photo in photos()
    ]
    table = [
        _request("/invocations", json.dumps(each).encode(), "application/json") for each in records
    ]
    encoded = [
        _request(
            "/predict",
            json.dumps({"image": each["dataframe_records"][0]["image"]}).encode(),
            "application/json",
        )
        for each in records
    ]
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        process, port = stack.enter_context(_serving())
        own = process.pid, port
        servers = [("patchline serve, raw", own, _raw()), ("patchline serve, base64", own, encoded)]
        servers.append(("patchline serve, /invocations", own, table))
        servers.append(("mlflow models serve", stack.enter_context(_mlflow(folder)), table))
        if python:
            servers.append(("LitServe", stack.enter_context(_litserve(folder, python)), encoded))
        for number in range(3):
            for name, (pid, port), requests in servers:
                others = {other for _, (other, _), _ in servers} - {pid}
                with contextlib.ExitStack() as stopped:  # LitServe polls while nobody asks
                    for other in others:
                        stopped.enter_context(_suspend(other))
                    before = _processor_seconds(pid)
                    load = asyncio.run(_run_closed_loop(port, requests, _SECONDS))
                    each = (_processor_seconds(pid) - before) / max(1, len(load.seconds))
                rates.setdefault(name, []).append(len(load.seconds) / _SECONDS)
                print(
                    f"round {number}: {name} {rates[name][-1]:.0f} requests/s, p50 "
                    f"{load.percentile(0.5):.0f} ms, p99 {load.percentile(0.99):.0f} ms, "
                    f"{1000 * each:.2f} ms of processor time a request",
                    flush=True,
                )
    for name, measured in rates.items():
        print(f"{name}, median of 3: {statistics.median(measured):.0f} requests/s")
    values = (Value.median(name, measured, "requests/s") for name, measured in rates.items())
    record("serving_peers", *values)


@contextmanager
def _suspend(pid: int) -> Iterator[None]:
    """Stop a process and its children while the block runs, so that they take no core."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            process.resume()


@contextmanager
def _mlflow(folder: Path) -> Iterator[tuple[int, int]]:
    """Serve the same package with MLflow's server."""
    from patchline.pipeline.packaging.standalone_file import write_model_server
    from patchline.pipeline.registry.registration import save_as_mlflow_model
    from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

    package = folder / "package-1" / "artifacts"
    write_model_server(package / "model_server.py")
    (package / "model_card.md").write_text("# A model\n", encoding="utf-8")
    saved = save_as_mlflow_model(TrackedRun("run-1", "0", package), "m-1", package)
    port = free_port()
    program = str(Path(sys.executable).parent / "mlflow")
    command = [program, "models", "serve", "--model-uri", str(saved), "--env-manager", "local"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with _start([*command, "--port", str(port)], port, "/ping", {"PATH": path}) as pid:
        yield pid, port


@contextmanager
def _litserve(folder: Path, python: str) -> Iterator[tuple[int, int]]:
    """Serve the same network with LitServe, as its documentation shows it."""
    port, program = free_port(), folder / "lit.py"
    program.write_text(_LITSERVE, encoding="utf-8")
    model = str(folder / "package-1" / "artifacts" / "model.onnx")
    with _start([python, str(program), model, str(port)], port, "/health", {}) as pid:
        yield pid, port


_LITSERVE = """
import base64, sys
import cv2, litserve, numpy as np, onnxruntime
class Api(litserve.LitAPI):
    def setup(self, device):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options)
        self.name = self.session.get_inputs()[0].name
        self.side = self.session.get_inputs()[0].shape[1]
    def decode_request(self, request):
        data = np.frombuffer(base64.b64decode(request["image"]), np.uint8)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
        return cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_AREA)
    def batch(self, inputs):
        return np.stack(inputs)
    def predict(self, images):
        return self.session.run(None, {self.name: images})[0]
    def unbatch(self, outputs):
        return list(outputs)
    def encode_response(self, output):
        best = np.argsort(-output)[:5]
        return {"top": [{"label": int(k), "probability": float(output[k])} for k in best]}
if __name__ == "__main__":
    api = Api(max_batch_size=16, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=2)
    quiet = {"generate_client_file": False, "log_level": "error"}
    server.run(port=int(sys.argv[2]), host="127.0.0.1", **quiet)
"""


@contextmanager
def _start(
    command: list[str], port: int, health: str, environment: dict[str, str]
) -> Iterator[int]:
    with Path("peers.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        request = f"GET {health} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as to:
                to.sendall(request.encode())
                if b" 200 " in to.recv(100):
                    break
            if process.poll() is not None:
                sys.exit(Path("peers.log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.2)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def switches(folder: Path, number: float) -> None:
    """Move the alias between two versions under load; count failed and mixed answers."""
    from patchline.pipeline.workspace.tracking.tracking_store import client

    del folder
    store = client()
    with _serving() as (process, port):
        done = threading.Event()
        loads: list[Load] = []

        def ask() -> None:
            while not done.is_set():
                loads.append(asyncio.run(_run_closed_loop(port, _raw(), 2.0, 8)))

        asking = threading.Thread(target=ask)
        asking.start()
        waits = []
        memory = [psutil.Process(process.pid).memory_info().rss]
        for each in range(int(number)):
            version = "2" if each % 2 == 0 else "1"
            store.set_registered_model_alias(NAME, "champion", version)
            began = time.monotonic()
            while _version(port) != version:
                time.sleep(0.05)
            waits.append(time.monotonic() - began)
            memory.append(psutil.Process(process.pid).memory_info().rss)
        done.set()
        asking.join()
        time.sleep(_REST_SECONDS)
        memory.append(psutil.Process(process.pid).memory_info().rss)
    statuses: dict[int, int] = {}
    for load in loads:
        for status, count in load.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    print(
        f"{int(number)} switches: answers {statuses}, mixed {sum(load.mixed for load in loads)}, "
        f"lost {sum(load.lost for load in loads)}; seen after {statistics.median(waits):.1f} s "
        f"(median), {max(waits):.1f} s (longest); memory {memory[0] >> 20} MiB at first, "
        f"{memory[len(memory) // 2] >> 20} MiB half way, {memory[-1] >> 20} MiB at the end "
        f"(largest {max(memory) >> 20})"
    )


def _version(port: int) -> str:
    request = f"GET /status HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as to, to.makefile("rb") as stream:
        to.sendall(request.encode())
        return str(json.loads(stream.read().partition(b"\r\n\r\n")[2])["version"])


def sigterm(folder: Path, rounds: float) -> None:
    """Stop the server under load; count requests that were sent and not answered."""
    del folder
    total, statuses, seconds = 0, 0, []
    for _ in range(int(rounds)):
        with _serving() as (process, port), ThreadPoolExecutor(1) as pool:
            asking = pool.submit(asyncio.run, _run_closed_loop(port, _raw(), 6.0))
            time.sleep(2.0)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            seconds.append(time.monotonic() - began)
            load = asking.result()
            total += load.lost
            statuses += len(load.seconds)
            print(
                f"answers {load.statuses}, lost {load.lost}, ended with {code} after "
                f"{seconds[-1]:.1f} s",
                flush=True,
            )
    print(f"{int(rounds)} rounds: {statuses} answered, {total} lost")


def start(folder: Path, rounds: float) -> None:
    """Print the seconds from the command until it says that it is ready."""
    del folder
    seconds = []
    for _ in range(int(rounds)):
        began = time.monotonic()
        with _serving():
            seconds.append(time.monotonic() - began)
    listed = ", ".join(f"{each:.2f}" for each in seconds)
    print(f"ready after {listed} s")
    record("serving_start", Value.median("from the command to the first answer", seconds, "s"))


def hostile(folder: Path, minutes: float, share: float) -> None:
    """Ask as usual, alone and beside clients that are damaged, huge, slow or half-closed."""
    del folder
    with _serving() as (process, port):
        warm = asyncio.run(_run_closed_loop(port, _raw(), 3.0, 4))
        rate = share * len(warm.seconds) / 3.0
        alone = asyncio.run(_open_loop(port, _raw(), rate, 10.0))
        before = psutil.Process(process.pid).memory_info().rss >> 20
        memory: list[int] = []
        statuses: dict[int, int] = {}
        end = time.monotonic() + 60 * minutes
        good = Load()
        while time.monotonic() < end:
            load, others = asyncio.run(_send_mixed(port, rate, min(10.0, end - time.monotonic())))
            good.seconds += load.seconds
            for found in (load.statuses, others):
                for status, count in found.items():
                    statuses[status] = statuses.get(status, 0) + count
            memory.append(psutil.Process(process.pid).memory_info().rss >> 20)
        time.sleep(_REST_SECONDS)  # what was being decoded is no longer held
        rest = psutil.Process(process.pid).memory_info().rss >> 20
        print(
            f"{minutes:g} minutes: answers {statuses}; good requests p99 "
            f"{alone.percentile(0.99):.0f} ms alone, {good.percentile(0.99):.0f} ms beside hostile "
            f"ones; memory {before} MiB before, {rest} MiB after them (largest {max(memory)}); "
            f"still answers: {_version(port) == '1'}"
        )


async def _send_mixed(port: int, rate: float, seconds: float) -> tuple[Load, dict[int, int]]:
    """Send good requests, and a fourth as many hostile ones beside them."""
    statuses: dict[int, int] = {}
    generator = random.Random(time.time_ns())  # noqa: S311 - not for secrets
    end, tasks = time.monotonic() + seconds, []

    async def attack() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(generator.expovariate(rate / 4))
            tasks.append(asyncio.ensure_future(_hostile(port, generator, statuses)))

    attacking = asyncio.ensure_future(attack())
    load = await _open_loop(port, _raw(), rate, seconds)
    await attacking
    await asyncio.gather(*tasks, return_exceptions=True)
    return load, statuses


async def _hostile(port: int, generator: random.Random, statuses: dict[int, int]) -> None:
    """Send one hostile request, and count its answer; 0 for none."""
    photo = generator.choice(_PHOTOS)
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n".encode()
    kinds = {
        "damaged": head + _with_length(photo[: generator.randrange(len(photo))]),
        "noise": head + _with_length(generator.randbytes(2000)),
        "bomb": head + _with_length(_BOMB),
        "huge": head + b"Content-Length: 99999999999\r\n\r\n" + bytes(1 << 20),
        "json": head + b"Content-Type: application/json\r\n" + _with_length(b"[" * 5000),
        "tensor": head.replace(b"/predict", f"/v2/models/{NAME}/infer".encode())
        + _with_length(
            b'{"inputs": [{"name": "image", "datatype": "UINT8", "shape": [9], "data": [1]}]}'
        ),
        "type": head + b"Content-Type: video/mp4\r\n" + _with_length(photo),
        "form": head
        + b"Content-Type: multipart/form-data; boundary=x\r\n"
        + _with_length(b"--x\r\n"),
        "line": b"\x00\xff nonsense\r\n\r\n",
        "short": head + b"Content-Length: 5000\r\n\r\n" + photo[:1000],
    }
    name = generator.choice([*kinds, "slow head", "slow body", "half closed", "vanished"])
    status = 0
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
        async with asyncio.timeout(15):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                if name in kinds:
                    writer.write(kinds[name])
                    if name == "short":
                        writer.write_eof()
                elif name == "slow head":
                    for byte in head[:8]:
                        writer.write(bytes([byte]))
                        await asyncio.sleep(1.0)
                elif name == "slow body":
                    writer.write(head + b"Content-Length: 5000\r\n\r\n")
                    for byte in photo[:8]:
                        writer.write(bytes([byte]))
                        await asyncio.sleep(1.0)
                else:
                    writer.write(head + _with_length(photo))
                    if name == "half closed":
                        writer.write_eof()
                    else:
                        return
                status, _, _ = await _answer(reader)
            finally:
                statuses[status] = statuses.get(status, 0) + 1
                writer.close()


def bodies(folder: Path, seconds: float, limit: int, only: str) -> None:
    """Send bodies that become large from twelve connections; measure memory and `/healthz`."""
    del folder
    kinds = _build_growing_bodies()
    for name in [only] if only else kinds:
        with _serving() as (process, port):
            request = kinds[name]().replace(b"{port}", str(port).encode(), 1)
            done = threading.Event()
            with ThreadPoolExecutor(2) as pool:
                memory = pool.submit(_largest_memory, process, limit, done)
                healthy = pool.submit(_healthz_seconds, port, done)
                load = asyncio.run(_run_closed_loop(port, [request], seconds, 12))
                done.set()
            slowest = f"{max(healthy.result(), default=float('nan')):.2f} s"
            ended = "" if process.poll() is None else ", killed"
            print(
                f"{name}: {len(request) / 2**20:.1f} MiB, answers {load.statuses}, memory "
                f"{memory.result()} MiB{ended}; /healthz {slowest} at most",
                flush=True,
            )


def _largest_memory(process: subprocess.Popen[str], limit: int, done: threading.Event) -> int:
    """Return the most MiB that a server and its children held; kill it beyond the limit."""
    most, server = 0, psutil.Process(process.pid)
    while not done.wait(0.02) and process.poll() is None:
        with contextlib.suppress(psutil.Error):
            processes = (server, *server.children(recursive=True))
            most = max(most, sum(each.memory_info().rss for each in processes) >> 20)
        if most > limit:
            process.kill()
            process.wait()
    return most


def _healthz_seconds(port: int, done: threading.Event) -> list[float]:
    """Return the seconds of each answer of `/healthz`, one after the other."""
    seconds = []
    request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    while not done.wait(0.1):
        began = time.monotonic()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as to:
            to.sendall(request.encode())
            while to.recv(1 << 12):
                pass
            seconds.append(time.monotonic() - began)
    return seconds


def _build_growing_bodies() -> dict[str, Callable[[], bytes]]:
    """Return what makes a request, by what is in it."""
    most, infer, in_json = (1 << 24) - 1000, f"/v2/models/{NAME}/infer", "application/json"

    def sent(text: str, path: str = "/predict", kind: str = in_json) -> bytes:
        return _request(path, text.encode(), kind)

    def listed(entry: str) -> str:
        return f"[{','.join([entry] * (most // (len(entry) + 1)))}]"

    def tensor(data: str, datatype: str = "UINT8", more: str = "") -> bytes:
        entry = f'"name":"image","datatype":"{datatype}","shape":[1],"data":{data}'
        return sent(f'{{"inputs":[{{{entry}}}]{more}}}', infer)

    def photo(more: str) -> bytes:
        return tensor(f'["{base64.b64encode(_PHOTOS[0]).decode()}"]', "BYTES", f",{more}")

    def keys(number: int) -> bytes:
        return sent("{" + ",".join(f'"{each}":0' for each in range(number)) + "}")

    def binary(datatype: str, shape: list[int], raw: bytes) -> bytes:
        given = {"name": "image", "datatype": datatype, "shape": shape}
        size = {"parameters": {"binary_data_size": len(raw)}}
        head = json.dumps({"inputs": [{**given, **size}]}).encode()
        line = f"Inference-Header-Content-Length: {len(head)}"
        return _with_line(_request(infer, head + raw, "application/octet-stream"), line)

    def chunked() -> bytes:
        whole = _request("/predict", b"", "image/png").replace(b"Content-Length: 0\r\n", b"")
        return _with_line(whole, "Transfer-Encoding: chunked") + b"1\r\na\r\n" * 200_000

    def zipped() -> bytes:
        bomb = _request("/predict", gzip.compress(bytes(1 << 26)), "image/png")
        return _with_line(bomb, "Content-Encoding: gzip")

    def large_image() -> bytes:
        file = cv2.imencode(".png", np.zeros((13_000, 13_000, 4), np.uint8))[1]
        return _request("/predict", file.tobytes(), "image/png")

    return {
        "photos": lambda: _raw()[0],
        "texts": lambda: tensor('["' + "a" * 700_000 + '"' + ',""' * 1500 + "]"),
        "lists": lambda: sent(listed("[]")),
        "lists as text": lambda: sent(listed("[]") * 3, infer, "text/plain"),
        "objects": lambda: sent(listed('{"":0}')),
        "keys": lambda: keys(1_400_000),
        "fewer keys": lambda: keys(25_000),
        "numbers": lambda: tensor(listed("999")),
        "an emoji": lambda: sent('["😀' + "a" * most + '"]'),
        "accents": lambda: sent('{"image":"' + "é" * (most // 2) + '"}'),
        "an id": lambda: photo('"id":"' + "\\n" * (most // 4) + '"'),
        "outputs": lambda: photo('"outputs":' + listed('{"name":"answer"}')),
        "rows": lambda: binary("UINT8", [60 << 20, 1], bytes(60 << 20)),
        "elements": lambda: binary("BYTES", [10 << 20], b"\x02\0\0\0ab" * (10 << 20)),
        "zeros in gzip": zipped,
        "small chunks": chunked,
        "large files": lambda: _request("/predict", bytes(60 << 20), "image/png"),
        "a large image": large_image,
    }


def _with_line(request: bytes, line: str) -> bytes:
    """Return a request with one more line in its head."""
    return request.replace(b"\r\n", f"\r\n{line}\r\n".encode(), 1)


def _with_length(body: bytes) -> bytes:
    return f"Content-Length: {len(body)}\r\n\r\n".encode() + body


_PHOTOS = photos()
_BOMB = cv2.imencode(".png", np.zeros((12_000, 12_000), np.uint8))[1].tobytes()
"""A file of few bytes, and of 144 million pixels."""


if __name__ == "__main__":
    main()
