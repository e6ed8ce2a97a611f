"""A Prefect server for one command, on loopback, that cannot outlive it.

Prefect's own temporary server keeps running when its owner is killed. This one watches a pipe from
its owner, as the training process does, and ends when the pipe closes.

Run as a module, this is the server: `python -P -m flows.temporary_server PORT`. The secret that
clients authenticate with is in its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from flows import prefect_settings
from flows.services import prefect_database, prefect_server
from pipeline import local_services
from pipeline.errors import RunError
from pipeline.files.atomic_files import storage_errors
from pipeline.local_login import new_secret, prefect_variables
from pipeline.local_services import HOST, answers
from pipeline.supervision import free_ports, supervised_main
from pipeline.workers.worker_start import stop_group
from pipeline.workspace import make_folder

_START_SECONDS = 240.0
"""As long as the servers of `patchline up` have; a busy machine needs more than two minutes."""
_ANSWER_SECONDS = 2.0
_VARIABLE = "PATCHLINE_SERVER_SECRET"


class TemporaryServer:
    """A server process that is starting, or has started."""

    def __init__(self, secret: str | None = None) -> None:
        """Start it, with a secret that its clients already know or a new one."""
        port = free_ports.any_free()
        self.url = f"http://{HOST}:{port}/api"
        secret = secret or new_secret()
        self.login = prefect_variables(secret)
        """Variables that a client needs in its environment."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.temporary_server", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=_own_folder(),
            env={
                **prefect_settings.own_server_environment(),
                **prefect_database.environment(),
                "PREFECT_UI_ENABLED": "0",
                "PREFECT__SERVER_EPHEMERAL": "1",
                _VARIABLE: secret,
            },
        )
        self._last_line = "nothing"
        threading.Thread(target=self._read_errors, daemon=True).start()

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            RunError: if it ends, or does not answer within four minutes.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RunError(
                    f"The temporary Prefect server exited with code {self._process.returncode} "
                    f"({self._last_line}). Check PREFECT_HOME, or set PREFECT_API_URL to a running "
                    "server."
                )
            if answers(f"{self.url}/health", _ANSWER_SECONDS):
                return
            time.sleep(0.05)
        raise RunError(
            f"The temporary Prefect server did not answer within {_START_SECONDS:.0f} s. If the "
            "machine is busy, try again; or run `patchline up` first, and then the command."
        )

    def stop(self) -> None:
        """End the server."""
        stop_group(self._process)

    def _read_errors(self) -> None:
        for line in self._process.stderr or ():
            self._last_line = line.decode(errors="replace").strip()


def _own_folder() -> Path:
    """Return a folder in which the server finds no settings of the user."""
    folder = local_services.services_folder()
    with storage_errors(folder):
        make_folder(folder)
    return folder


def _end_with_owner() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


def _serve(port: int) -> None:
    threading.Thread(target=_end_with_owner, daemon=True).start()
    prefect_server.serve(port, os.environ.pop(_VARIABLE), "error", home=None)


if __name__ == "__main__":
    supervised_main.main(lambda: _serve(int(sys.argv[1])))
