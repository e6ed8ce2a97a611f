"""An MLflow server of a test's own, on the store of a run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import patient

_START_SECONDS = patient(180.0)


@contextmanager
def mlflow_server(database: Path) -> Iterator[str]:
    """Show a store that is a SQLite file, and return the address of the pages."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--backend-store-uri", f"sqlite:///{database}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=database.parent,
        # Jobs are for language models, and take eight processes.
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(f"{address}/health"):
            assert process.poll() is None, "the MLflow server has ended"
            assert time.monotonic() < deadline, "the MLflow server does not answer"
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it only reads, and would take ten seconds
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=patient(10)) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
