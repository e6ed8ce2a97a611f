"""One process that the supervisor keeps going: started, watched, started again when it dies."""

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
"""How long a process may give no sign before it counts as stuck."""
_START_SECONDS = 240.0
"""How long it may take after a start until it is well."""
_LOOK_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_WELL_SECONDS = 300.0
"""After so long without trouble the next pause is the first one again."""
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Program:
    """What to start, and how to see that it is well."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    is_well: Callable[[], bool]
    """Asked by a thread; may take some seconds."""
    silent_seconds: float = _SILENT_SECONDS


@dataclass
class ManagedProcess:
    """A program that runs, or is about to run again."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    well_at: float = 0.0
    """When it was last seen well, by the clock that never jumps."""
    was_well: bool = False
    """Whether it has been seen well since it was started."""
    _started: float = 0.0
    _start_at: float = 0.0
    _pause: float = _FIRST_PAUSE
    _asking: threading.Thread | None = field(default=None, repr=False)
    _asked: float = 0.0

    def start(self) -> None:
        """Start it, in a group of its own."""
        with self.program.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(self.program.environment),
            )
        self._started = self.well_at = time.monotonic()
        self.was_well = False

    def look(self) -> str:
        """See how it is, start it again when that is due; return what happened, mostly nothing."""
        if self.process is None:
            if time.monotonic() < self._start_at:
                return ""
            self.start()
            return "is started again"
        code = self.process.poll()
        if code is not None:
            return self._fell(_ending(code))
        self._ask()
        silent = time.monotonic() - self.well_at
        if silent > (self.program.silent_seconds if self.was_well else _START_SECONDS):
            self.kill()
            return self._fell(f"has given no answer for {silent:.0f} s")
        return ""

    def end_code(self) -> int | None:
        """Return the exit code if it has ended."""
        return self.process.poll() if self.process else None

    def ask_now(self) -> bool:
        """Return whether it has been seen well since its start, looking again if not."""
        self._ask()
        return self.was_well

    def stop(self) -> None:
        """Ask it to end; `wait` goes on from there."""
        if self.process and self.process.poll() is None:
            self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it has ended, with all of its group; kill what does not end."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it and its group."""
        if self.process:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def last_words(self) -> str:
        """Return the last line of its log."""
        with contextlib.suppress(OSError):
            lines = self.program.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip()[:400] for line in reversed(lines) if line.strip()), "")
        return ""

    def _fell(self, why: str) -> str:
        """Plan the next start."""
        self.kill()
        if time.monotonic() - self._started > _WELL_SECONDS:
            self._pause = _FIRST_PAUSE
        self.process = None
        self._start_at = time.monotonic() + self._pause
        words = f"{why}; it starts again in {self._pause:.0f} s"
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return words

    def _ask(self) -> None:
        """Look at it in a thread, so that one that is stuck does not hold up the others."""
        busy = self._asking is not None and self._asking.is_alive()
        pause = _LOOK_SECONDS if self.was_well else 0.0
        if not busy and time.monotonic() - self._asked >= pause:
            self._asked = time.monotonic()
            self._asking = threading.Thread(target=self._ask_and_note, daemon=True)
            self._asking.start()

    def _ask_and_note(self) -> None:
        asked = self.process
        if self.program.is_well() and asked is self.process:
            self.well_at = time.monotonic()
            self.was_well = True

    def _signal(self, number: signal.Signals) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
