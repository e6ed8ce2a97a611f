"""The contract of a launcher, which decides where worker processes run.

A launcher starts `python -P -m MODULE FOLDER` on a machine with the resources that it needs. The
folder holds `job.json`; when the process has ended, it also holds `events.jsonl`, `worker.log` and
`result.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

GROUP_FILE = "group.json"
"""In the folder of a worker whose group is spread over several machines."""


@dataclass(frozen=True)
class Resources:
    """What a worker process needs of the machine that it runs on."""

    cpus: float | None = None
    """CPU cores; None for all cores of one machine."""
    gpus: int | None = 0
    """GPUs; None for one per process of the group where there are as many, and otherwise none."""
    memory_gib: float = 2.0
    """Memory in GiB."""
    processes: int = 1
    """Size of the group that trains together; the worker starts its processes by itself, on one
    machine or on several."""

    @classmethod
    def for_device(cls, device: str, processes: int = 1) -> Resources:
        """Return what computing on a device needs: `cpu`, `cuda`, or `auto` for the faster one."""
        gpus = {"auto": None, "cuda": processes}.get(device, 0)
        return cls(gpus=gpus, processes=processes)

    def on_one_machine(self) -> Resources:
        """Return the same for a single process, which uses all the GPUs."""
        return replace(self, processes=1)


@dataclass(frozen=True)
class WorkerTask:
    """A worker process to run: a module, the folder with its job, and what it needs."""

    module: str
    """Run as `python -P -m MODULE FOLDER`."""
    folder: Path
    """Absolute path of the folder with `job.json`."""
    resources: Resources = Resources()
    member_module: str | None = None
    """What the other machines run if the processes of a group are spread over several: a worker in
    the folder `node-INDEX` inside the folder, for each machine but the first. Its `job.json` has
    the `folder` and the `node`, counted from 0; `group.json` in the folder has the addresses of all
    `nodes` and a free `port` of the first."""
    files: tuple[Path, ...] = ()
    """Files and folders that the job names, absolute; it reads those that exist, and writes the
    others. A machine that does not have them gets them through a shared workspace."""
    same_place: tuple[Path, ...] = ()
    """Data that the job names, and that every machine has at the same path."""


class RunningWorker(Protocol):
    """A worker process that was started, on whatever machine."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs.

        By the time that it returns a code, all files that the process has written are in its
        folder; while it returns None, `events.jsonl` and `worker.log` grow. Raise `WorkerError` if
        the process is lost.
        """
        ...

    def stop(self) -> None:
        """End the process and all that it started, and wait for it; also if it has ended."""
        ...


class Launcher(Protocol):
    """Starts worker processes; used by one thread at a time."""

    machines: int
    """Number of machines over which the processes of a group are spread, if it has as many."""

    def prepare(self, module: str, resources: Resources) -> None:
        """Get ready to start a module soon; it may do nothing."""
        ...

    def introduction(self, module: str, resources: Resources) -> str:
        """Return the line that a prepared worker of a module prints about its machine, if any.

        Empty if no worker was prepared.
        """
        ...

    def slots(self, resources: Resources) -> int:
        """Return how many workers with these resources may run at the same time.

        With more than one, large jobs are divided into parts.
        """
        ...

    def shares_workspace(self) -> bool:
        """Return whether every worker sees the workspace's folder of this machine.

        Otherwise, what only that folder has of the data is read on this machine.
        """
        ...

    def start(self, task: WorkerTask) -> RunningWorker:
        """Start a worker process, as soon as there are the resources for it."""
        ...

    def close(self) -> None:
        """End all that it has started."""
        ...
