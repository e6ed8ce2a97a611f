"""An MLflow server of a test's own, on the store of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.local_services import answers
from tests.free_ports import free_port
from tests.patience import until


@contextmanager
def mlflow_server(database: Path) -> Iterator[str]:
    """Show a store that is a SQLite file, and return the address of the pages."""
    port = free_port()
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
        until(lambda: answers(f"{address}/health"), "no MLflow server answers", seconds=180)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it only reads, and would take ten seconds
        process.wait()
