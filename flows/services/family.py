"""Which processes belong to the servers of a folder, told by their command lines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PREFIX = "flows.services."
FLOW_RUN, SUPERVISOR = "flow_run_process", "supervisor"
_LOOK_SECONDS = 0.1


def command(module: str, folder: Path, *arguments: object) -> list[str]:
    """Return the command line of a process of the family: `-m flows.services.MODULE FOLDER ...`."""
    words = (str(argument) for argument in arguments)
    return [sys.executable, "-P", "-m", f"{_PREFIX}{module}", str(folder), *words]


def members(folder: Path, *modules: str) -> list[psutil.Process]:
    """Return the living processes of a folder's servers, those of the named modules or all."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            module = _module(process.cmdline(), folder)
            if not module or (modules and module not in modules):
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(processes: list[psutil.Process], grace_seconds: float) -> None:
    """Ask processes to end, wait, and kill those that do not with the groups that they lead."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
    for process in alive:
        kill(process)
    psutil.wait_procs(alive, timeout=grace_seconds)


def kill(process: psutil.Process) -> None:
    """Kill a process, and the group if it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)


def clear(folder: Path, grace_seconds: float) -> None:
    """Wait until the orphans of a dead supervisor have ended by themselves; kill the rest."""
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline:
        if not members(folder):
            return
        time.sleep(_LOOK_SECONDS)
    for process in members(folder):
        kill(process)


def _module(words: list[str], folder: Path) -> str:
    """Return which program of the family a command line starts; empty if none of this folder."""
    for position, word in enumerate(words[:-2]):
        if word == "-m" and words[position + 1].startswith(_PREFIX):
            named = words[position + 2] == str(folder)
            return words[position + 1].removeprefix(_PREFIX) if named else ""
    return ""
