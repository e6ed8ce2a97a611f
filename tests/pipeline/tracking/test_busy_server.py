"""A server whose database has no free connection is asked again, whoever runs it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from patchline.pipeline.errors import ServerAwayError
from patchline.pipeline.tracking import busy_server
from patchline.pipeline.tracking.tracking_store import client

_QUEUE_POOL = (
    "(sqlalchemy.exc.TimeoutError) QueuePool limit of size 5 overflow 10 reached, connection timed "
    "out, timeout 30.00 (Background on this error at: https://sqlalche.me/e/20/3o7r)"
)


class Server:
    """Answers MLflow's requests: with an error as often as asked, and then with success."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        self.errors = 0
        self.is_busy_at_once = False
        self.served: list[str] = []

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        """Return the status and the body for a request."""
        if path.endswith("experiments/search") and not self.is_busy_at_once:
            return 200, {"experiments": []}
        if self.errors:
            self.errors -= 1
            return self.status, {"error_code": self.code, "message": self.message}
        self.served.append(path)
        return 200, {"experiment_id": "7"}


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Serve while the block runs; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, body = server.answer(self.path.partition("?")[0])
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_server, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, "BAD_REQUEST", _QUEUE_POOL),
        (400, "BAD_REQUEST", "FATAL:  sorry, too many clients already"),
        (
            400,
            "TEMPORARILY_UNAVAILABLE",
            "FATAL:  remaining connection slots are reserved for superusers",
        ),
        (400, "BAD_REQUEST", 'FATAL:  too many connections for role "team"'),
    ],
)
def test_a_busy_server_is_asked_until_it_answers(
    status: int, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is carried out once."""
    server = Server(status, code, message)
    with serving(server) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        server.errors = 3
        client().log_batch("1" * 32, metrics=[Metric("loss", 1.0, 0, 0)])
    assert server.errors == 0
    assert [path.rpartition("/")[2] for path in server.served] == ["log-batch"]


def test_a_wrong_request_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be wrong again."""
    server = Server(400, "INVALID_PARAMETER_VALUE", "Invalid metric name")
    with serving(server) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        server.errors = 3
        with pytest.raises(MlflowException, match="Invalid metric name"):
            client().log_batch("1" * 32, metrics=[Metric("loss", 1.0, 0, 0)])
    assert server.errors == 2
    assert server.served == []


def test_a_server_that_stays_busy_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience has ended."""
    monkeypatch.setattr(busy_server, "PATIENCE_SECONDS", 0.05)
    server = Server(400, "BAD_REQUEST", _QUEUE_POOL)
    server.errors = 10**9
    with serving(server) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(MlflowException, match="QueuePool limit"):
            client().log_batch("1" * 32, metrics=[Metric("loss", 1.0, 0, 0)])
        server.is_busy_at_once = True
        with pytest.raises(ServerAwayError, match="it is busy: no connection"):
            client()


def test_what_a_busy_server_has_done_all_the_same_is_not_done_twice() -> None:
    """MLflow writes a model's version before it asks for the connection that was not free."""
    versions: list[str] = []

    def register() -> str:
        versions.append("1")
        raise MlflowException(_QUEUE_POOL)

    assert busy_server.repeated(register, lambda: versions[0] if versions else None) == "1"
    assert versions == ["1"]


def test_first_requests_of_many_threads_leave_the_timeouts_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables are those of all threads; a short timeout that stayed would lose requests."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    with serving(Server(400, "", "")) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with ThreadPoolExecutor(4) as threads:
            for made in [threads.submit(client) for _ in range(12)]:
                made.result()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
