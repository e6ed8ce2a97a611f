"""A process that a supervisor keeps running: how it is started, begins, beats and ends.

The supervisor holds a lock, the lifeline: every process of `patchline up` ends when it is released.
The operating system releases the lock of a process that ends, however it ends. A pipe would do the
same for direct children only. The runs that the runner starts must end with the supervisor, too,
but must survive the runner.

A user may move the folder of a workspace. What a long-lived process writes by its old path would
otherwise create a new workspace in the old place, where the user wants to move the folder back to.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import OrchestrationError, PipelineError
from patchline.pipeline.local_services import HOST, services_folder
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workers.host import interruption
from patchline.pipeline.workers.worker_start import (
    describe_ending,
    end_own_group,
    last_line,
    signal_group,
)
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder

_SILENT_SECONDS = 60.0
"""How long a process may fail its health check before it counts as stuck."""
_START_SECONDS = 240.0
"""How long it may take after a start until it is well."""
_CHECK_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_WELL_SECONDS = 300.0
"""After running this long, the next restart is as quick as the first."""
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Program:
    """What to start, and how to check that it is well."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    is_well: Callable[[], bool]
    """Called in a thread; may take some seconds."""
    silent_seconds: float = _SILENT_SECONDS


@dataclass
class SupervisedProcess:
    """A program that is running, or waits for its restart."""

    program: Program
    popen: subprocess.Popen[bytes] | None = None
    """None while it waits for its restart."""
    well_at: float = 0.0
    """When it last passed its health check, by the monotonic clock."""
    was_well: bool = False
    """Whether it has passed its health check since it was started."""
    _started: float = 0.0
    _start_at: float = 0.0
    _pause: float = _FIRST_PAUSE
    _check: threading.Thread | None = field(default=None, repr=False)
    _checked: float = 0.0

    def start(self) -> None:
        """Start it in a process group of its own."""
        with self.program.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(self.program.environment),
            )
        self._started = self.well_at = time.monotonic()
        self.was_well = False

    def check(self) -> str:
        """Check it, restart it when that is due, and return what happened; mostly nothing."""
        if self.popen is None:
            if time.monotonic() < self._start_at:
                return ""
            self.start()
            return "was restarted"
        code = self.popen.poll()
        if code is not None:
            return self._plan_restart(describe_ending(code))
        self._start_check()
        silent = time.monotonic() - self.well_at
        if silent > (self.program.silent_seconds if self.was_well else _START_SECONDS):
            self.kill()
            return self._plan_restart(f"has not answered for {silent:.0f} s")
        return ""

    def end_code(self) -> int | None:
        """Return the exit code if it has ended."""
        return self.popen.poll() if self.popen else None

    def check_now(self) -> bool:
        """Return whether it has been well since its start; start another check if not."""
        self._start_check()
        return self.was_well

    def stop(self) -> None:
        """Ask it to end; `wait` waits for that."""
        if self.popen and self.popen.poll() is None:
            self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it has ended with its whole group; kill what does not end."""
        if self.popen is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it and its group."""
        if self.popen:
            self._signal(signal.SIGKILL)
            self.popen.wait()

    def last_log_line(self) -> str:
        """Return the last line of its log."""
        return last_line(self.program.log, 400).strip()

    def _plan_restart(self, why: str) -> str:
        self.kill()
        if time.monotonic() - self._started > _WELL_SECONDS:
            self._pause = _FIRST_PAUSE
        self.popen = None
        self._start_at = time.monotonic() + self._pause
        happened = f"{why}; restarting in {self._pause:.0f} s"
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return happened

    def _start_check(self) -> None:
        """Check it in a thread, so that a process that is stuck does not delay the others."""
        busy = self._check is not None and self._check.is_alive()
        pause = _CHECK_SECONDS if self.was_well else 0.0
        if not busy and time.monotonic() - self._checked >= pause:
            self._checked = time.monotonic()
            self._check = threading.Thread(target=self._note_health, daemon=True)
            self._check.start()

    def _note_health(self) -> None:
        checked = self.popen
        if self.program.is_well() and checked is self.popen:
            self.well_at = time.monotonic()
            self.was_well = True

    def _signal(self, number: signal.Signals) -> None:
        if self.popen:
            signal_group(self.popen.pid, number)


def hold_lifeline(file: Path) -> int:
    """Hold the lifeline while this process lives; return the open file that holds it."""
    import fcntl  # not available on Windows

    make_folder(file.parent)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def end_with_lifeline(file: Path) -> None:
    """End this process, and its group if it leads one, as soon as nobody holds the lifeline."""
    threading.Thread(target=_wait_and_end, args=(file,), daemon=True).start()


def _wait_and_end(file: Path) -> None:
    import fcntl

    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
    finally:  # a missing lifeline means the same as a released one
        end_own_group()


_served: dict[Path, tuple[int, int]] = {}
"""Device and file number of each served workspace, by the path of its folder at the start."""


def remember_workspace(folder: Path) -> None:
    """Remember which workspace a path leads to now, if it leads to one.

    Args:
        folder: the folder that holds the workspace.
    """
    if (identity := _identity(folder)) is not None:
        _served[folder] = identity


def is_workspace_there(folder: Path) -> bool:
    """Return whether a path leads to the workspace that it led to when it was remembered.

    A workspace that was not remembered is remembered by this call.
    """
    if folder not in _served:
        remember_workspace(folder)
    identity = _identity(folder)
    return identity is not None and identity == _served.get(folder)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = (folder / WORKSPACE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def begin() -> tuple[Path, Path, list[str]]:
    """Set up this process so that it ends with the supervisor and logs no secrets.

    The folder becomes the working directory. Ctrl-C in a terminal does not reach this process.

    Returns:
        The folder, the lifeline, and the rest of the command line.
    """
    folder, lifeline = Path(sys.argv[1]), Path(sys.argv[2])
    end_with_lifeline(lifeline)
    interruption.ignore_ctrl_c()
    quiet_libraries.apply()
    redaction.install(streams=True)
    os.chdir(folder)
    remember_workspace(folder)
    return folder, lifeline, sys.argv[3:]


def main(work: Callable[[], None]) -> None:
    """Do the work of this process; an error becomes the last line of its log."""
    try:
        work()
    except PipelineError as error:
        sys.stderr.write(f"Error: {visible(str(error), lines=True)}\n")
        sys.stderr.flush()
        sys.exit(error.exit_code)


_beats = itertools.count()


def beat(folder: Path, name: str) -> None:
    """Record that this process is well; nothing while the folder is not in its place.

    Args:
        folder: the working directory of the services.
        name: the name of this process.
    """
    if not is_workspace_there(folder):
        return
    file = _beat_file(folder, name)
    make_folder(file.parent)
    file.write_text(f"{os.getpid()} {next(_beats)}", encoding="utf-8")


def is_beating(folder: Path, name: str) -> Callable[[], bool]:
    """Return a function that returns whether the process has beaten since the last call."""
    file = _beat_file(folder, name)
    seen = _beat_content(file)

    def has_beaten() -> bool:
        nonlocal seen
        before, seen = seen, _beat_content(file)
        return seen != before

    return has_beaten


def _beat_file(folder: Path, name: str) -> Path:
    return services_folder(folder) / "beats" / name


def _beat_content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


LAST_PORT = 65535
_TRIED = 100


def is_free_port(port: int) -> bool:
    """Return whether a server could listen on a port; closing connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def first_free_port(first: int, avoid: frozenset[int] = frozenset()) -> int:
    """Return the wanted port, or the next free one.

    Raises:
        OrchestrationError: if a hundred in a row are taken.
    """
    candidates = range(first, min(first + _TRIED, LAST_PORT + 1))
    for port in candidates:
        if port not in avoid and is_free_port(port):
            return port
    raise OrchestrationError(
        f"Ports {first} to {candidates[-1]} are all taken or may not be used. Choose others with "
        "--prefect-port and --mlflow-port."
    )
