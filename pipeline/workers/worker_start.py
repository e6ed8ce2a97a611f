"""Start worker processes, also ahead of time, and stop them: the launcher of this machine.

It starts the workers of this process unless another launcher is in use.

Imports would take most of the time of a short stage. So a worker can be prepared while another
stage is still running: it imports what its module needs, prints an introduction of one line, and
waits for the folder of its job. A prepared worker that is not needed is stopped; one that died is
replaced by a worker that is started on demand.

A worker collects no garbage while it imports: there is none, and looking for it takes an eighth of
the time. The option `-X patchline-worker` of its interpreter tells it to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from patchline.pipeline.workers.launcher import Launcher, Resources, WorkerTask

LOG_FILE = "worker.log"
WAIT, WAIT_TO_LEAD = "--wait", "--wait-to-lead"
"""Passed instead of a folder to a worker that is prepared ahead of time, the second one to a worker
that will only start and watch the processes of a group."""
_ENVIRONMENT = {
    # Waiting threads must sleep soon: spinning ones block each other when another process needs a
    # core. Ten thousand spins, some microseconds, bridge the gaps of a small model; sleeping at
    # once made its training 20% slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "10000",
    # Each step of a training allocates what the last one has freed. By default glibc returns large
    # blocks to the kernel, which clears them page by page when they are needed again: a tenth of a
    # step (docs/reference/performance.md, "A training step"). Other C libraries ignore these.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_GRACE_SECONDS = 10.0
_ALONE = Resources()


@dataclass
class _Prepared:
    process: subprocess.Popen[bytes]
    introduction: bytes | None = None
    """Its introduction, once somebody has waited for it; empty if the worker died instead."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """The lock for reading its one line; of two threads that read it, one would wait for ever."""


_prepared: dict[tuple[str, str], _Prepared] | None = None
"""By module and argument."""
_taking = threading.Lock()
"""Two threads cannot both take the prepared worker of a module."""


@contextmanager
def allow_prepared_workers() -> Iterator[None]:
    """Allow workers to be prepared inside the block; at its end, stop unused ones."""
    global _prepared  # noqa: PLW0603 - one process runs one line of stages
    if _prepared is not None:  # the outer block stops them
        yield
        return
    _prepared = {}
    try:
        yield
    finally:
        waiting, _prepared = _prepared, None
        for each in waiting.values():
            stop_group(each.process)
            _close_output(each.process)


def _introduction(waiting: _Prepared) -> bytes:
    with waiting.reading:
        if waiting.introduction is None:
            lines = waiting.process.stdout or ()  # a library may have printed some before it
            waiting.introduction = next((line for line in lines if line.startswith(b"{")), b"")
    return waiting.introduction


class LocalLauncher:
    """A launcher that starts processes of this machine, one at a time.

    Jobs are not divided into parts: what reads, decodes and predicts uses all cores by itself.

    Args:
        keeps_prepared: whether prepared workers wait until it is closed; otherwise, until the block
            `allow_prepared_workers` ends, and outside of one none is prepared.
    """

    machines = 1

    def __init__(self, *, keeps_prepared: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        if keeps_prepared:
            self._stack.enter_context(allow_prepared_workers())

    def prepare(self, module: str, resources: Resources = _ALONE) -> None:
        """Start a worker of a module ahead of its job, or outside `allow_prepared_workers` nothing.

        Only one worker of each module waits; one that will leave the work to a group of processes
        that it starts imports less, and has no introduction.
        """
        key = (module, WAIT_TO_LEAD if resources.processes > 1 else WAIT)
        if _prepared is not None and key not in _prepared:
            _prepared[key] = _Prepared(_start(*key, subprocess.PIPE, subprocess.DEVNULL))

    def introduction(self, module: str, _resources: Resources = _ALONE) -> str:
        """Return what the prepared worker of a module has printed, once its imports are done.

        Empty if none was prepared, or if it died.
        """
        waiting = (_prepared or {}).get((module, WAIT))
        return _introduction(waiting).decode() if waiting else ""

    def slots(self, _resources: Resources) -> int:
        """Return one, because each worker uses the whole machine."""
        return 1

    def shares_workspace(self) -> bool:
        """Return true, because workers are processes of this machine."""
        return True

    def start(self, task: WorkerTask) -> LocalWorker:
        """Pass the folder to the prepared worker of the module, or to a new one."""
        with _taking:
            prepared = _prepared or {}
            key = max((each for each in prepared if each[0] == task.module), default=("", ""))
            waiting = prepared.get(key)
            said = bool(waiting and _introduction(waiting))
            prepared.pop(key, None)
        if waiting:
            taken = said and _send_folder(waiting.process, task.folder)
            _close_output(waiting.process)
            if taken:
                return LocalWorker(waiting.process)
            stop_group(waiting.process)
        with (task.folder / LOG_FILE).open("ab") as log:
            return LocalWorker(_start(task.module, str(task.folder), log, subprocess.STDOUT))

    def close(self) -> None:
        """End the prepared workers that it keeps."""
        self._stack.close()


@dataclass(frozen=True)
class LocalWorker:
    """A process of this machine, which leads a process group."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self.process.poll()

    def stop(self) -> None:
        """End the process with its whole group."""
        stop_group(self.process)


_LOCAL = LocalLauncher()
_used: list[tuple[str, Launcher]] = []
"""The launchers of the enclosing `use_launcher` blocks; one process runs one line of stages."""


def current_launcher() -> Launcher:
    """Return the launcher that starts the workers of this process."""
    return _used[-1][1] if _used else _LOCAL


@contextmanager
def use_launcher(description: str, build: Callable[[], Launcher]) -> Iterator[Launcher]:
    """Start workers with another launcher inside the block, and close it at the end.

    Args:
        description: the launcher with its settings, in words; an outer block with the same
            description lends its launcher.
        build: returns the launcher.
    """
    if _used and _used[-1][0] == description:
        yield _used[-1][1]
        return
    launcher = build()
    _used.append((description, launcher))
    try:
        yield launcher
    finally:
        _used.pop()
        launcher.close()


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own group, with the whole group, and wait for it."""
    try:
        if process.poll() is None:
            signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # then SIGKILL follows
                process.wait(_GRACE_SECONDS)
    finally:
        signal_group(process.pid, signal.SIGKILL)  # also ends what the leader left behind
        process.wait()
        if process.stdin:
            process.stdin.close()


def end_own_group() -> NoReturn:
    """End this process, and its group if it leads one."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def describe_ending(code: int) -> str:
    """Return how a process ended, from its exit code."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _start(
    module: str, argument: str, output: int | IO[bytes], errors: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-X", "patchline-worker", "-P", "-m", module, argument],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """Return the environment of a worker; what the user has set is kept."""
    return {**_ENVIRONMENT, **os.environ}


def _send_folder(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Send a worker its folder, and where relative paths begin; return whether it was alive."""
    line = json.dumps([str(folder.absolute()), str(Path.cwd())]).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):
        return process.stdin is not None and process.stdin.write(line) == len(line)
    return False


def _close_output(process: subprocess.Popen[bytes]) -> None:
    if process.stdout:
        process.stdout.close()


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if there still is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def last_line(log: Path, most: int) -> str:
    """Return the beginning of the last line of a log that is not blank; empty if there is none."""
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:most] if lines else ""
    return ""
