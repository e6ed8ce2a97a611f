"""Find the processes of a folder's services by their command lines, whatever version started them.

The command line of each is `python -P -m patchline.flows.services.MODULE FOLDER ...`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.waiting import wait_until

if TYPE_CHECKING:
    import psutil

_PREFIX = "patchline.flows.services."
FLOW_RUN, SUPERVISOR = "flow_run_process", "supervisor"
_POLL_SECONDS = 0.1


def command(module: str, folder: Path, *arguments: object) -> list[str]:
    """Return the command line that starts a module of this package for a folder."""
    words = (str(argument) for argument in arguments)
    return [sys.executable, "-P", "-m", f"{_PREFIX}{module}", str(folder), *words]


def members(folder: Path, *modules: str) -> list[psutil.Process]:
    """Return the living processes of a folder's services: of the named modules, or all of them."""
    import psutil

    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            module = _module(process, folder)
            if not module or (modules and module not in modules):
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def clear(folder: Path, grace_seconds: float) -> None:
    """Wait for the orphans of a dead supervisor, which end by themselves; kill what is left."""
    wait_until(lambda: not members(folder), _POLL_SECONDS, grace_seconds)
    for process in members(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            leads_group = os.getpgid(process.pid) == process.pid
            (os.killpg if leads_group else os.kill)(process.pid, signal.SIGKILL)


def _module(process: psutil.Process, folder: Path) -> str:
    """Return the module that a process runs; empty unless it serves this folder.

    Services of a folder that was moved under them name the old path; they work in the new one.
    """
    words = process.cmdline()
    for position, word in enumerate(words[:-2]):
        if word == "-m" and words[position + 1].startswith(_PREFIX):
            module = words[position + 1].removeprefix(_PREFIX)
            serves = words[position + 2] == str(folder)
            moved = module != FLOW_RUN and not serves and process.cwd() == str(folder)
            return module if serves or moved else ""
    return ""
