"""Run worker processes on this machine, prepared ahead of time where there is memory."""

from __future__ import annotations

import contextlib
import subprocess

from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Resources, WorkerTask


class LocalLauncher:
    """A launcher that starts processes of this machine, one at a time.

    Jobs are not divided into parts: what reads, decodes and predicts uses all cores by itself.

    Args:
        keeps_prepared: whether prepared workers wait until it is closed; otherwise, until the block
            `worker_start.prepared_workers` ends, and outside of one none is prepared.
    """

    machines = 1

    def __init__(self, *, keeps_prepared: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        if keeps_prepared:
            self._stack.enter_context(worker_start.prepared_workers())

    def prepare(self, module: str, resources: Resources) -> None:
        """Start a worker that imports what its module needs; see `worker_start.prepare`."""
        worker_start.prepare(module, to_lead=resources.processes > 1)

    def introduction(self, module: str, _resources: Resources) -> str:
        """Return what the prepared worker of a module has printed; empty if there is none."""
        return worker_start.introduction(module)

    def slots(self, _resources: Resources) -> int:
        """Return one, because each worker uses the whole machine."""
        return 1

    def shares_workspace(self) -> bool:
        """Return true, because workers are processes of this machine."""
        return True

    def start(self, task: WorkerTask) -> LocalWorker:
        """Pass the folder to the prepared worker of the module, or to a new one."""
        return LocalWorker(worker_start.start(task.module, task.folder))

    def close(self) -> None:
        """End the prepared workers that it keeps."""
        self._stack.close()


class LocalWorker:
    """A process of this machine, which leads a process group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End the process with its whole group."""
        worker_start.stop_group(self._process)
