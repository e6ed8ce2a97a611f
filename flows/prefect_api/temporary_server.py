"""A Prefect server for one command, on loopback, that cannot outlive it.

Prefect's own temporary server keeps running when its owner is killed. This one watches a pipe from
its owner, as the training process does, and ends when the pipe closes.

If it dies itself, its owner starts it again with the same database. The owner holds the socket that
it listens on, so that requests wait until then instead of being refused, and Prefect's client
repeats those that were interrupted: the command continues.

Run as a module, this is the server: `python -P -m patchline.flows.prefect_api.temporary_server
SOCKET`, with the number of the inherited socket. The secret that clients authenticate with is in
its environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from patchline.flows.prefect_api import postgres, prefect_database, prefect_settings
from patchline.pipeline import local_services
from patchline.pipeline.errors import RunError
from patchline.pipeline.local_services import HOST, answers, new_secret, prefect_variables
from patchline.pipeline.waiting import Periodic, wait_until
from patchline.pipeline.web import gate
from patchline.pipeline.web.gate import Guarded, Limited
from patchline.pipeline.web.request_headers import App
from patchline.pipeline.workers import supervised_process
from patchline.pipeline.workers.worker_start import describe_ending, stop_group
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.workspace_folder import make_folder

_COLLECT_EVERY_SECONDS = 1.0
_FULL_COLLECTION_EVERY = 30
"""Every so many turns, objects that have survived a turn are looked through, too."""


def collect_in_own_thread(pause_seconds: float = _COLLECT_EVERY_SECONDS) -> None:
    """Stop the automatic collection in this process, and collect regularly in a daemon thread.

    By default, whichever thread allocates next collects, here mostly that of the event loop. Among
    the garbage are cursors of SQLite, and to finalise one takes the lock of its connection. If
    another thread holds that while it waits for the database, and the transaction that it waits for
    needs the event loop, the server stands still until SQLite gives up: for a minute, Prefect's
    `busy_timeout`. What exists already, such as modules, is taken to stay.
    """
    gc.disable()
    gc.freeze()
    turns = itertools.cycle([*[1] * (_FULL_COLLECTION_EVERY - 1), 2])
    Periodic(lambda: gc.collect(next(turns)), pause_seconds)


def serve(
    port: int,
    secret: str,
    log_level: str,
    home: str | None = "/",
    listening: socket.socket | None = None,
) -> None:
    """Serve until a signal arrives.

    Args:
        port: the port to listen on.
        secret: what clients authenticate with.
        log_level: the level of the server's own log.
        home: the first page; none without a UI.
        listening: a socket that already listens on the port.

    Raises:
        OrchestrationError: if the database cannot be used.
    """
    _import_server()
    prefect_database.upgrade()
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

    # A password in Prefect's own settings is for other servers; the UI would ask for it as well.
    with temporary_settings(restore_defaults={PREFECT_SERVER_API_AUTH_STRING}):
        app: App = create_app()
        if connections := _connections():
            app = Limited(app, connections)
        guarded = Guarded(app, port, health="/api/health", home=home)
        collect_in_own_thread()
        gate.serve(guarded, secret, log_level, lifespan="on", listening=listening)


def _import_server() -> None:
    """Import Prefect's server, which takes seconds and touches no file."""
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"  # done here, under a lock
    importlib.import_module("prefect.server.api.server")


def _connections() -> int:
    """Return how many connections the pool may open, if the database is a team's."""
    from prefect.settings import get_current_settings

    of = get_current_settings().server.database
    address = of.connection_url.get_secret_value() if of.connection_url else ""
    if not postgres.is_postgres(address):
        return 0
    return of.sqlalchemy.pool_size + max(0, of.sqlalchemy.max_overflow)


_START_SECONDS = 240.0
"""As long as the servers of `patchline up` have; a busy machine needs more than two minutes."""
_ANSWER_SECONDS = 2.0
_BACKLOG = 512
"""Connections that wait for a server that is starting."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the server is started again, doubled each time."""
_VARIABLE = "PATCHLINE_SERVER_SECRET"
_WITHOUT_BLOCK_TYPES = {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "0",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "0",
}
"""A new database would get a hundred block types, for forms of the UI, before the server answers.
Nor does it note that a database has them: the server of `patchline up` registers them."""


class TemporaryServer:
    """A server process that is starting, or has started, and is started again when it dies."""

    def __init__(self, secret: str | None = None, say: Callable[[str], None] | None = None) -> None:
        """Start it.

        Args:
            secret: what its clients already authenticate with; by default a new one.
            say: called from another thread with a line when the server was started again.
        """
        self._listening = socket.create_server((HOST, 0), backlog=_BACKLOG)
        self.url = f"http://{HOST}:{self._listening.getsockname()[1]}/api"
        secret = secret or new_secret()
        self.login = prefect_variables(secret)
        """Variables that a client needs in its environment."""
        self._folder = _own_folder()
        self._environment = {
            **prefect_settings.own_server_environment(),
            **prefect_database.address_environment(),
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            **_WITHOUT_BLOCK_TYPES,
            _VARIABLE: secret,
        }
        self._make_key: Callable[[], dict[str, str]] = (
            dict if prefect_database.is_chosen() else prefect_database.own_key
        )
        self._first_line = b""
        """Sent to the process to begin: the variable with the key of its database."""
        self._say = say
        self._last_line = "nothing"
        self._was_well = False
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        """Held while the process is replaced or stopped."""
        self._process = self._started()
        threading.Thread(target=self._keep_running, daemon=True).start()

    def use_database(self) -> None:
        """Let the process use its database; until then, it imports and leaves no file.

        Raises:
            StorageError: if the folder of the database may not be written.
        """
        if not self._first_line:
            self._first_line = json.dumps(self._make_key()).encode() + b"\n"
            self._begin()

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            RunError: if it ends, or does not answer within four minutes.
            StorageError: if the folder of the database may not be written.
        """
        self.use_database()
        self._was_well = wait_until(self._answers, 0.05, _START_SECONDS)
        if not self._was_well:
            raise RunError(
                f"The temporary Prefect server did not answer within {_START_SECONDS:.0f} s. If "
                "the machine is busy, try again; or run `patchline up` first, and then the command."
            )

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RunError(
                f"The temporary Prefect server exited with code {self._process.returncode} "
                f"({self._last_line}). Check PREFECT_HOME, or set PREFECT_API_URL to a running "
                "server."
            )
        return answers(f"{self.url}/health", _ANSWER_SECONDS)

    def stop(self) -> None:
        """End the server."""
        self._stopping.set()
        with self._changing:
            self._listening.close()
            stop_group(self._process)

    def _started(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        process = subprocess.Popen(
            [
                sys.executable,
                *("-X", "patchline-worker"),  # no collection of garbage while it imports
                "-P",
                "-m",
                "patchline.flows.prefect_api.temporary_server",
                str(number),
            ],
            pass_fds=[number],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=self._folder,
            env=self._environment,
        )
        threading.Thread(target=self._read_errors, args=(process,), daemon=True).start()
        return process

    def _begin(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            if self._process.stdin:
                os.write(self._process.stdin.fileno(), self._first_line)

    def _keep_running(self) -> None:
        """Start the server again when it dies; not before it has answered once: see `wait`."""
        pause = _FIRST_PAUSE
        while True:
            code = self._process.wait()
            if not self._was_well or self._stopping.wait(pause):
                return
            with self._changing:
                if self._stopping.is_set():
                    return
                stop_group(self._process)  # what its leader left behind
                self._process = self._started()
                self._begin()
            pause = min(2 * pause, _LONGEST_PAUSE)
            if self._say:
                self._say(
                    f"the temporary Prefect server {describe_ending(code)} and was started again"
                )

    def _read_errors(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stderr or ():
            self._last_line = line.decode(errors="replace").strip()


def _own_folder() -> Path:
    """Return a folder in which the server finds no settings of the user."""
    folder = local_services.services_folder()
    with storage_errors(folder):
        make_folder(folder)
    return folder


def _follow_owner(sent: queue.SimpleQueue[bytes]) -> None:
    """Pass on the line by which the owner lets this process begin, and end with the owner."""
    with contextlib.suppress(OSError):
        while line := os.read(0, 4096):
            sent.put(line)
    os._exit(0)


def _serve(listening: socket.socket) -> None:
    sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_follow_owner, args=(sent,), daemon=True).start()
    _import_server()
    os.environ.update(json.loads(sent.get()))
    port, secret = listening.getsockname()[1], os.environ.pop(_VARIABLE)
    serve(port, secret, "error", home=None, listening=listening)


if __name__ == "__main__":
    supervised_process.main(lambda: _serve(socket.socket(fileno=int(sys.argv[1]))))
