"""How each process that the supervisor started begins, and how it says that it is well."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flows.services import lifeline
from pipeline import quiet_libraries, redaction
from pipeline.errors import PipelineError
from pipeline.files.held_locks import is_held
from pipeline.local_services import services_folder
from pipeline.terminal_words import visible
from pipeline.workspace import make_folder

_PATIENCE_SECONDS = 0.5
_beats = itertools.count()


def begin() -> tuple[Path, Path, list[str]]:
    """Return the folder, the lifeline and what else the command line says; end with the lifeline.

    The folder becomes the working directory. Ctrl-C in a terminal is nothing to this process.
    """
    folder, line = Path(sys.argv[1]), Path(sys.argv[2])
    lifeline.end_with(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet_libraries.apply()
    redaction.install(streams=True)
    os.chdir(folder)
    return folder, line, sys.argv[3:]


def main(work: Callable[[], None]) -> None:
    """Do the work of this process; an error becomes the last line of its log."""
    try:
        work()
    except PipelineError as error:
        print(f"Error: {visible(str(error), lines=True)}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


def beat_file(folder: Path, name: str) -> Path:
    """Return the file whose change says that a process without a port is well."""
    return services_folder(folder) / "beats" / name


def beat(folder: Path, name: str) -> None:
    """Say that this process is well."""
    file = beat_file(folder, name)
    make_folder(file.parent)
    file.write_text(f"{os.getpid()} {next(_beats)}", encoding="utf-8")


def draining_lock(folder: Path) -> Path:
    """Return the file that is locked while `patchline down` waits: no run may begin."""
    return services_folder(folder) / "draining.lock"


def is_draining(folder: Path) -> bool:
    """Return whether the servers are about to be stopped."""
    return is_held(draining_lock(folder))


def wait_until(condition: Callable[[], bool]) -> None:
    """Look twice a second until something is so."""
    while not condition():
        time.sleep(_PATIENCE_SECONDS)
