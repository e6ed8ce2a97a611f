"""One process that the supervisor keeps running: started, checked, and restarted when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
            return self._plan_restart(ending(code))
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
        with contextlib.suppress(OSError):
            lines = self.program.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip()[:400] for line in reversed(lines) if line.strip()), "")
        return ""

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
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)


def ending(code: int) -> str:
    """Return how a process ended, from its exit code."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
