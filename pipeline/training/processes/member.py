"""The worker of another machine of a group: `python -P -m MODULE FOLDER`, with torch's agent.

It runs its part of the processes whenever the first machine trains in several, and ends with it.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.errors import WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MEMBER_MODULE
from patchline.pipeline.training.processes import process_launch
from patchline.pipeline.training.processes.machines import Machines
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import JOB_FILE, Worker

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_LOOK = timedelta(seconds=2)


class MemberJob(FrozenModel):
    """Which training to take part in."""

    folder: Path
    """Folder of the training."""
    node: int
    """Which of the machines this is, counted from 0."""


class MemberDone(FrozenModel):
    """The first machine has no more work."""


def take_part(member: MemberJob, _events: EventWriter) -> MemberDone:
    """Run the agent of this machine for each attempt of the first one, until that has ended."""
    job = TrainingJob.from_file(member.folder / JOB_FILE)
    machines = Machines.of(member.folder)
    store, attempt = _wait_for_store(machines), 0
    while True:
        said = _wait_for_message(store, process_launch.attempt_key(attempt))
        if said == process_launch.THE_END:
            return MemberDone()
        if not machines.shares_folder:
            process_launch.empty_folder(member.folder, job)
        logs = member.folder / f"node-{member.node}" / "logs"
        with contextlib.suppress(WorkerError):  # the first machine says why
            process_launch.run_agent(job, machines, said, member.node, logs)
        attempt += 1


def _wait_for_store(machines: Machines) -> Store:
    """Wait until the first machine starts its processes; it may compute something else before."""
    while True:
        with contextlib.suppress(RuntimeError):  # torch's errors of a connection are of this class
            return machines.reach_store(_LOOK)


def _wait_for_message(store: Store, key: str) -> str:
    """Wait for what the first machine says; its end breaks the connection."""
    while not store.check([key]):
        try:
            store.wait([key], _LOOK)
        except RuntimeError as error:  # torch raises subclasses of it for a time-out, too
            if "imed out" not in str(error) and "imeout" not in str(error):
                raise WorkerError("The first machine of the training has ended.") from error
    return bytes(store.get(key)).decode()


if __name__ == "__main__":
    Worker(MEMBER_MODULE, MemberJob, MemberDone).main(take_part)
