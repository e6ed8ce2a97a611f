"""A server whose database has no free connection is asked again, whoever runs it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from patchline.pipeline.errors import ServerAwayError
from patchline.pipeline.workspace.tracking import busy_server
from patchline.pipeline.workspace.tracking.tracking_store import client

_QUEUE_POOL = (
    "(sqlalchemy.exc.TimeoutError) QueuePool limit of size 5 overflow 10 reached, connection timed "
    "out, timeout 30.00 (Background on this error at: https://sqlalche.me/e/20/3o7r)"
)


class Server(ThreadingHTTPServer):
    """Answers MLflow's requests: with an error as often as asked, and then with success."""

    def __init__(self, message: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.message, self.errors, self.is_busy_at_once = message, 0, False
        self.served: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers as its server says."""

    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        server, action = self.server, self.path.partition("?")[0].rpartition("/")[2]
        is_error = bool(server.errors) and (action != "search" or server.is_busy_at_once)
        if is_error:
            server.errors -= 1
        elif action != "search":
            server.served.append(action)
        text = json.dumps(
            {"error_code": "BAD_REQUEST", "message": server.message} if is_error else {}
        )
        self.send_response(400 if is_error else 200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Server]]:
    """Return a function that makes a server, which is the store of this process."""
    monkeypatch.setattr(busy_server, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    made: list[Server] = []

    def serve(message: str) -> Server:
        server = Server(message)
        made.append(server)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield serve
    for server in made:
        server.shutdown()
        server.server_close()


def _log() -> None:
    client().log_batch("1" * 32, metrics=[Metric("loss", 1.0, 0, 0)])


@pytest.mark.parametrize(
    "message",
    [
        _QUEUE_POOL,
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for superusers",
        'FATAL:  too many connections for role "team"',
    ],
)
def test_a_busy_server_is_asked_until_it_answers(
    serving: Callable[[str], Server], message: str
) -> None:
    """The request is carried out once."""
    server = serving(message)
    server.errors = 3
    _log()
    assert (server.errors, server.served) == (0, ["log-batch"])


def test_a_server_that_stays_busy_is_said_in_one_sentence(
    serving: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the patience has ended; a wrong request, which would be wrong again, is sent once."""
    wrong = serving("Invalid metric name")
    wrong.errors = 3
    with pytest.raises(MlflowException, match="Invalid metric name"):
        _log()
    assert wrong.errors == 2
    monkeypatch.setattr(busy_server, "PATIENCE_SECONDS", 0.05)
    busy = serving(_QUEUE_POOL)
    busy.errors = 10**9
    with pytest.raises(MlflowException, match="QueuePool limit"):
        _log()
    busy.is_busy_at_once = True
    with pytest.raises(ServerAwayError, match="it is busy: no connection"):
        client()


def test_what_a_busy_server_has_done_all_the_same_is_not_done_twice() -> None:
    """MLflow writes a model's version before it asks for the connection that was not free."""
    versions: list[str] = []

    def register() -> str:
        versions.append("1")
        raise MlflowException(_QUEUE_POOL)

    assert busy_server.repeat_while_busy(register, lambda: versions[0] if versions else None) == "1"
    assert versions == ["1"]


def test_first_requests_of_many_threads_leave_the_timeouts_as_they_were(
    serving: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables are those of all threads; a short timeout that stayed would lose requests."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    serving("")
    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(client) for _ in range(12)]:
            made.result()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
