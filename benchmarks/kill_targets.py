"""The processes of a folder in which Patchline is running, by kind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from flows.services import service_processes
from pipeline.run_memory import live_runs
from pipeline.workers.worker_start import LOG_FILE
from pipeline.workspace import WORKSPACE

SERVICES = {
    "runner": "runner",
    "keeper": "keeper",
    "Prefect server": "prefect_server",
    "MLflow server": "mlflow_server",
    "supervisor": "supervisor",
}
WORKERS = {
    "training": "pipeline.training",
    "evaluation": "pipeline.evaluation",
    "packaging": "pipeline.packaging",
}
KINDS = (
    "command", "flow", "training", "data worker", "evaluation", "packaging", "prepared worker",
    *SERVICES,
)  # fmt: skip
LATEST_SECONDS = {
    "training": 3.0, "data worker": 2.0, "evaluation": 0.2, "packaging": 2.0,
    "prepared worker": 5.0,
}  # fmt: skip
"""Maximum time from a worker's start to the kill, by kind."""
_LONGEST_DELAY = 16.0


def latest(kind: str) -> float:
    """Return the maximum time from a process's start to the kill, in seconds."""
    return LATEST_SECONDS.get(kind, _LONGEST_DELAY)


def find(kind: str, folder: Path, command: psutil.Process | None) -> psutil.Process | None:
    """Return the process of a kind that is running in a folder.

    Args:
        kind: one of `KINDS`.
        folder: the working directory.
        command: the `patchline run` that was started, if one was.
    """
    if kind == "command":
        return command if command and _has_begun(command, folder) else None
    if kind in SERVICES:
        found = service_processes.members(folder, SERVICES[kind])
        return found[0] if found else None
    runs = service_processes.members(folder, service_processes.FLOW_RUN)
    if kind == "flow":
        return runs[0] if runs else None
    for run in runs:
        for child in _descendants(run):
            if _is(kind, child):
                return child
    return None


def stage(folder: Path) -> str:
    """Return the current stage of the folder's run."""
    for run in [*service_processes.members(folder, service_processes.FLOW_RUN), *_direct(folder)]:
        words = [" ".join(_words(child)) for child in _descendants(run) if has_work(child)]
        for name, module in WORKERS.items():
            if any(f"-m {module} " in word for word in words):
                return name
    alive = [record for record in live_runs.records(folder / WORKSPACE) if record.is_alive]
    return "between workers" if alive else "before or after"


def all_of(folder: Path) -> list[psutil.Process]:
    """Return every process whose working directory or command line names a folder."""
    found = []
    me = psutil.Process()
    mine = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in mine or process.status() == psutil.STATUS_ZOMBIE:
                continue
            where = Path(process.cwd())
            if where == folder or folder in where.parents or _named(process, folder):
                found.append(process)
    return found


def rightful(folder: Path) -> set[int]:
    """Return the processes that are not orphans: the servers, and what active runs have started."""
    roots = service_processes.members(folder)
    for record in live_runs.records(folder / WORKSPACE):
        with contextlib.suppress(psutil.Error):
            if record.is_alive:
                roots.append(psutil.Process(record.pid))
    return {each.pid for root in roots for each in (root, *_descendants(root))}


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def _direct(folder: Path) -> Iterator[psutil.Process]:
    for record in live_runs.records(folder / WORKSPACE):
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(record.pid)


def _has_begun(command: psutil.Process, folder: Path) -> bool:
    """Return whether the flow of a command has begun; before that there is nothing to close."""
    pids = {record.pid for record in live_runs.records(folder / WORKSPACE)}
    return command.pid in pids


def _is(kind: str, process: psutil.Process) -> bool:
    words = _words(process)
    if kind == "data worker":
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            helps = any("resource_tracker" in word for word in _words(process))
            return not helps and parent is not None and WORKERS["training"] in _words(parent)
        return False
    if kind == "prepared worker":
        return any(module in words for module in WORKERS.values()) and not has_work(process)
    return WORKERS[kind] in words and "-m" in words and has_work(process)


def has_work(worker: psutil.Process) -> bool:
    """Return whether a worker has a job; a worker that waits for one has no log yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{worker.pid}/fd/1").readlink().name == LOG_FILE
    return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _named(process: psutil.Process, folder: Path) -> bool:
    return any(word == str(folder) or word.startswith(f"{folder}/") for word in _words(process))
